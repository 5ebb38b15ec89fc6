"""The server as a Ray Serve deployment: every replica is the whole app with an engine of its own.

Requests with the same `x-session-id` go to the same replica, which still has the chat's prefix. Replicas come and go
with the number of requests that are answered or wait. One that goes gets no new requests and ends its streams first.
"""

import logging
from dataclasses import replace

from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgemma.scale.ray_cluster import RayError, own_device, resources
from wgemma.serve.app import make_app
from wgemma.serve.service import Service
from wgemma.serve.settings import Settings

APP = "wgemma"
DRAIN = 600.0  # seconds that a replica has for its open streams
STICKY = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"


def deploy(settings: Settings, least: int, most: int, host: str, port: int) -> None:
    """Starts the app on the cluster that Ray is connected to; returns when its first replicas are there."""

    def build() -> ASGIApp:
        device = settings.device if isinstance(settings.device, str) else None
        return _named(make_app(Service(replace(settings, device=own_device(device)))))

    replica = serve.deployment(
        name="replica",
        ray_actor_options=resources(),
        max_ongoing_requests=2 * settings.slots,  # while some are written, the next are ready
        max_queued_requests=settings.queue,
        autoscaling_config=scaling(settings, least, most),
        request_router_config=RequestRouterConfig(request_router_class=STICKY),
        graceful_shutdown_timeout_s=DRAIN,
        graceful_shutdown_wait_loop_s=0.2,
    )(serve.ingress(build)())
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="EveryNode", http_options=HTTPOptions(host=host, port=port))
    try:
        serve.run(replica.bind(), name=APP, route_prefix="/", logging_config={"log_level": "ERROR"})
    except RuntimeError:
        why = "; ".join(one.message for one in serve.status().applications[APP].deployments.values() if one.message)
        raise RayError(f"no replica could be started: {why.strip().rpartition(chr(10))[2][:300]}") from None


def scaling(settings: Settings, least: int, most: int) -> AutoscalingConfig:
    """How many replicas there are: as many as it takes for every request to have a slot."""
    return AutoscalingConfig(
        min_replicas=least, max_replicas=most, initial_replicas=least, target_ongoing_requests=settings.slots
    )


def _named(app: ASGIApp) -> ASGIApp:
    """The app, whose responses say which replica they are from."""
    name = serve.get_replica_context().replica_id.unique_id

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-replica", name.encode())]
            await send(message)

        await app(scope, receive, send_named)

    return named


def undeploy() -> None:
    """Ends the app: open streams first."""
    serve.delete(APP)
