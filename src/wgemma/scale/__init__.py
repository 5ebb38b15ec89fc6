"""Beyond one machine: files of requests, answered by this machine's GPU or by the workers of a Ray cluster.

    rows       one line of the requests file: OpenAI's {custom_id, method, url, body}, read line by line
    results    the results file: records are appended and flushed as they come, so a job that was killed goes on
    desk       answers requests on the models of this machine, by the server's own translators
    job        which rows are to do, the records that come, and how far it is

    ray_cluster  a Ray cluster, there or started here, and what an engine takes of it
    ray_batch    a job over its workers, by Ray Data
    ray_serve    the server as its deployment, by Ray Serve
    ray_proxy    what tells clients that a replica is lost

A record is {id, custom_id, response: {status_code, request_id, body} or null, error}. `id` holds the number of the
line, so that lines without a usable custom_id are known, too. Records come in the order in which answers are complete;
custom_id tells which is whose.
"""
