"""Reading ahead of need in the page: what is fetched, how often, and what becomes of it; and bytes of any remainder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# A source that remembers what it was asked for, and answers when it is told to.
SOURCE = """async (limit) => {
  const {ReadAhead} = await import("/ahead.js");
  globalThis.asked = [];
  globalThis.answers = [];
  globalThis.byte = (at) => (at * 7 + (at >> 8)) % 251;
  const read = (offset, length) => new Promise((resolve, reject) => {
    asked.push([offset, length]);
    answers.push((error) => error ? reject(error) : resolve(Uint8Array.from({length}, (_, i) => byte(offset + i))));
  });
  globalThis.source = new ReadAhead({name: "far", size: 2 ** 40, read, copy: () => ({}), close() {}});
  globalThis.right = (bytes, offset) => bytes.every((value, i) => value === byte(offset + i));
  globalThis.flow = () => { for (const answer of answers.splice(0)) answer(); };
  globalThis.flowing = (work) => {
    const timer = setInterval(flow, 1);
    return work.finally(() => clearInterval(timer));
  };
}"""


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    page.evaluate(SOURCE)
    yield page
    page.close()


def test_neighbours_are_fetched_together_and_read_apart(page: Any) -> None:
    told = page.evaluate(
        """async () => {
          source.expect([100, 50, 160, 1000, 2000000, 10, 1200, 5]);
          const before = [...asked];
          const reads = [[160, 1000], [1200, 5], [100, 50], [2000000, 10]];
          const got = await flowing(Promise.all(reads.map(([at, length]) => source.read(at, length))));
          const good = got.every((bytes, i) => bytes.length === reads[i][1] && right(bytes, reads[i][0]));
          return {before, asked, right: good};
        }"""
    )
    assert told["before"] == [[100, 1060], [2000000, 10], [1200, 5]]
    assert told["asked"] == told["before"] and told["right"]


def test_what_was_not_expected_is_fetched_all_the_same(page: Any) -> None:
    told = page.evaluate(
        """async () => {
          source.expect([0, 10]);
          const got = await flowing(Promise.all([source.read(0, 20), source.read(5, 3), source.read(0, 10)]));
          return {asked, right: right(got[0], 0) && right(got[1], 5) && right(got[2], 0)};
        }"""
    )
    assert told["right"] and told["asked"] == [[0, 10], [0, 20], [5, 3]]


def test_no_more_is_asked_for_than_there_is_room(page: Any) -> None:
    """Six requests at once; and what somebody waits for goes first, however much is waiting already."""
    told = page.evaluate(
        """async () => {
          const step = 20 << 20;
          source.expect(Array.from({length: 20}, (_, i) => [i * 2 * step, 3]).flat());
          const first = asked.length;
          const late = source.read(19 * 2 * step, 3);
          const then = asked.length;
          return {first, then, last: asked.at(-1)[0] / step / 2, right: right(await flowing(late), 19 * 2 * step)};
        }"""
    )
    assert told == {"first": 6, "then": 7, "last": 19, "right": True}


def test_a_line_that_breaks_is_heard_of_where_it_matters(page: Any) -> None:
    told = page.evaluate(
        """async () => {
          source.expect([0, 10, 1 << 20, 10]);
          answers.shift()(new Error("cut"));
          const failed = await source.read(0, 10).catch((error) => error.message);
          return {failed, right: right(await flowing(source.read(1 << 20, 10)), 1 << 20)};
        }"""
    )
    assert told == {"failed": "cut", "right": True}


def test_rows_are_kept_and_end_on_a_whole_word(page: Any) -> None:
    told = page.evaluate(
        """async () => {
          source.expectRows([500, 700], 30);
          const rows = await flowing(source.rows([700, 500, 900], 30));
          await flowing(source.rows([900, 700], 30));
          const each = [700, 500, 900].map((at, i) => right(rows.subarray(30 * i, 30 * (i + 1)), at));
          return {asked, each, length: rows.length, end: [...rows.subarray(90)]};
        }"""
    )
    assert told == {"asked": [[500, 30], [700, 30], [900, 30]], "each": [True] * 3, "length": 92, "end": [0, 0]}


def test_a_large_file_is_fetched_by_several_workers(page: Any, server: Any, tmp_path: Path) -> None:
    """A real server and a picked file: what comes is what was asked for, and a failure has its code."""
    (tmp_path / "large.bin").write_bytes(bytes(i * 7 % 251 for i in range(1 << 16)) * (80 << 4))
    told = page.evaluate(
        """async (url) => {
          const {openSource} = await import("/sources.js");
          const blob = await (await fetch(url)).blob();
          const spans = Array.from({length: 20}, (_, i) => [i * (4 << 20) + i, (4 << 20) - 32]).flat();
          const whole = new Uint8Array(await blob.arrayBuffer());
          const seen = [];
          for (const source of [await openSource(url, {save: false}), await openSource(blob)]) {
            source.expect(spans);
            let good = true;
            for (let i = 0; i < spans.length; i += 2) {
              const got = await source.read(spans[i], spans[i + 1]);
              const want = whole.subarray(spans[i], spans[i] + spans[i + 1]);
              good &&= got.length === want.length && [0, 1, 999999, got.length - 1].every((at) => got[at] === want[at]);
            }
            seen.push(good);
            source.expect(spans);
            await source.close();
          }
          const lost = await openSource(url, {save: false});
          await fetch(url + "?gone", {method: "HEAD"});
          lost.expect([whole.length - 10, 1 << 27]);
          const error = await lost.read(whole.length - 10, 1 << 27).catch((error) => error.code);
          await lost.close();
          return {seen, error};
        }""",
        server.offer(tmp_path / "large.bin"),
    )
    assert told == {"seen": [True, True], "error": "network"}


# Keeps a file, stops in the middle, goes on, and reads all of it from the storage.
KEEP = """
import {openSource} from "/sources.js";
const url = "/models/kept.bin";
const first = await openSource(url, {progress: (loaded) => loaded > 40 << 20 && first?.close().catch(() => {})});
const cut = await first.finished().then(() => "whole", (error) => error.name);
const before = (await (await import("/opfs.js")).saved())[0].loaded;
const second = await openSource(url, {});
await second.finished();
await second.close();
const third = await openSource(url, {});
let wrong = 0;
for (let at = 0; at < third.size; at += 1 << 20) {
  const bytes = await third.read(at, 1 << 20);
  for (const i of [0, 1, 77777, bytes.length - 1]) if (bytes[i] !== (((at + i) % 65536) * 7) % 251) wrong++;
}
await third.close(true);
postMessage({cut, some: before > 16 << 20 && before < third.size, wrong, size: third.size});
"""


def test_a_large_download_comes_by_several_lines_and_goes_on_where_it_stopped(
    page: Any, server: Any, tmp_path: Path
) -> None:
    (tmp_path / "kept.bin").write_bytes(bytes(i * 7 % 251 for i in range(1 << 16)) * (128 << 4))
    server.offer(tmp_path / "kept.bin")
    server.files["keep.js"] = tmp_path / "keep.js"
    server.files["keep.js"].write_text(KEEP)
    told = page.evaluate(
        """() => new Promise((resolve, reject) => {
          const worker = new Worker("/keep.js", {type: "module"});
          worker.onmessage = ({data}) => resolve(data);
          worker.onerror = ({message}) => reject(new Error(message));
        })"""
    )
    assert told.pop("cut") != "whole"
    assert told == {"some": True, "wrong": 0, "size": 128 << 20}
    begun = {span for path, span in server.asked if path == "models/kept.bin" and span}
    assert len(begun) >= (128 - 40) // 16


# -- the GPU's side

ANY = """
import json
import lab
from pyodide.ffi import to_js
from wgemma.gpu.browser import BrowserDevice
from wgemma.gpu.tape import Tape

device = await BrowserDevice.open(lab.openGpu, "")
full = bytes(range(1, 65))
buffer, other = device.buffer(64, "test"), device.buffer(64, "other")
wrong = []
for offset in range(5):
    for size in (1, 2, 3, 4, 5, 7, 8, 11):
        data = bytes(200 + i for i in range(size))
        for given in (data, to_js(data)):
            device.write(buffer, 0, full)
            device.write(buffer, offset, given)
            if await device.read(buffer) != full[:offset] + data + full[offset + size:]:
                wrong.append(("write", offset, size, given is data))
        device.write(buffer, 0, full)
        if await device.read(buffer, offset, size) != full[offset : offset + size]:
            wrong.append(("read", offset, size))
        device.write(other, 0, bytes(64))
        tape = Tape(device, "copy")
        tape.copy(buffer, offset, other, 2 * offset + 1, size)
        tape.program().replay()
        tape.free()
        to = 2 * offset + 1
        if await device.read(other) != bytes(to) + full[offset : offset + size] + bytes(64 - to - size):
            wrong.append(("copy", offset, size))
large = to_js(bytes(range(251)) * 8400)
room = device.buffer(len(large) + 3, "large")
device.write(room, 1, large)
await device.flush(0)
if await device.read(room, 1, len(large)) != large.to_bytes():
    wrong.append("large")
json.dumps(wrong)
"""


def test_bytes_of_any_remainder_go_in_across_and_out(lab: Callable[[str], Any]) -> None:
    assert lab(ANY) == []
