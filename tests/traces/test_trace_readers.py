"""Recorded requests as people have them: every shape, every compression, and everything that can be wrong."""

import codecs
import gzip
import json
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from specplan.errors import InputError
from specplan.files.lines import BrokenLog
from specplan.traces.read import TraceReader, find_files, read_step_order
from specplan.traces.requests import RecordedRequest, token_ids
from specplan.traces.shapes import Fields
from specplan.traces.text import TextEncoder

WORDS = ["<unk>", "<s>", "[user]", "[assistant]", *"abcdefgh"]


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word, no password
    made.pre_tokenizer = WhitespaceSplit()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write(tmp_path: Path, *rows: object, name: str = "trace.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **options: object) -> list[tuple[str, str, list[int], list[int]]]:
    reader = TraceReader(broken=BrokenLog(fatal=True), **options)  # type: ignore[arg-type]
    return [(r.id, r.tag, r.prompt.tolist(), r.response.tolist()) for r in reader.read([path])]


IDS = {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (IDS | {"id": "x", "kind": "copy"}, [("x", "copy", [1, 2], [3, 4])]),
        (IDS | {"request_id": 7, "tag": "t"}, [("7", "t", [1, 2], [3, 4])]),
        ({"input_ids": [1], "output_ids": [2], "rid": "r"}, [("r", "", [1], [2])]),
        (
            {"event": "request.finished", "rid": "r", "obj": {"input_ids": [1]}, "out": {"output_ids": [2]}},
            [("r", "", [1], [2])],
        ),
        (
            {"request_id": "a", "prompt_token_ids": [1], "outputs": [{"token_ids": [2]}, {"token_ids": [3, 4]}]},
            [("a#0", "", [1], [2]), ("a#1", "", [1], [3, 4])],
        ),
        (
            {"id": "c", "prompt_token_ids": [1], "choices": [{"token_ids": [5, 6], "message": {"content": "x"}}]},
            [("c", "", [1], [5, 6])],
        ),
        (
            {"id": "c", "choices": [{"prompt_token_ids": [9], "token_ids": [5]}]},
            [("c", "", [9], [5])],
        ),
        (IDS | {"id": "e", "emitted_token_ids": [3, 4, 5]}, [("e", "", [1, 2], [3, 4, 5])]),
        ({"requests": [IDS | {"id": "p"}, IDS | {"id": "q"}]}, [("p", "", [1, 2], [3, 4]), ("q", "", [1, 2], [3, 4])]),
        ([IDS | {"id": "p"}], [("p", "", [1, 2], [3, 4])]),
        ({"id": "e", "prompt_token_ids": [], "output_token_ids": []}, [("e", "", [], [])]),
    ],
)
def test_shapes_of_token_ids(tmp_path: Path, row: object, want: list) -> None:
    assert read(write(tmp_path, row)) == want


def test_named_fields_may_be_paths(tmp_path: Path) -> None:
    row = {"in": {"ids": [1]}, "answer": {"ids": [2]}, "meta": {"group": 5, "key": "k"}}
    fields = Fields(prompt="in.ids", response="answer.ids", tag="meta.group", id="meta.key")
    assert read(write(tmp_path, row), fields=fields) == [("k", "5", [1], [2])]
    emitted = Fields(response="emitted_token_ids")
    assert read(write(tmp_path, IDS | {"emitted_token_ids": [3, 4, 5]}), fields=emitted)[0][3] == [3, 4, 5]


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"prompt": "a b", "response": "c d"}, "<s> a b", "c d"),
        ({"prompt": "a", "completion": "c"}, "<s> a", "c"),
        ({"prompt": "a", "generated_text": "c"}, "<s> a", "c"),
        (
            {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]},
            "[user] a b [assistant]",
            "c",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": "c"},
                ]
            },
            "[user] a [assistant]",
            "c",
        ),
        (
            {
                "request": {"messages": [{"role": "user", "content": "a"}]},
                "response": {"body": {"choices": [{"message": {"role": "assistant", "content": "d e"}}]}},
            },
            "[user] a [assistant]",
            "d e",
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            "[user] a [assistant]",
            "b",
        ),
        # vLLM's replies have token_ids and prompt_token_ids in any case: null, unless they were asked for
        (
            {
                "messages": [{"role": "user", "content": "a"}],
                "choices": [{"message": {"role": "assistant", "content": "d e"}, "token_ids": None}],
                "prompt_token_ids": None,
            },
            "[user] a [assistant]",
            "d e",
        ),
        ({"prompt": "a b", "choices": [{"text": "c", "token_ids": None}, {"text": "d"}]}, "<s> a b", "c"),
    ],
)
def test_shapes_of_text(tmp_path: Path, tokenizer: Path, row: object, prompt: str, response: str) -> None:
    (got,) = read(write(tmp_path, row), encoder=TextEncoder(tokenizer))
    assert got[2:] == (ids(prompt), ids(response))


def test_a_tokenizer_that_cuts_and_pads_gives_the_whole_text(tmp_path: Path, tokenizer: Path) -> None:
    made = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    made.enable_truncation(2)
    made.enable_padding(length=8)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    encoder = TextEncoder(path)
    assert encoder.prompt("a b c d").tolist() == ids("<s> a b c d")
    assert encoder.response("a").tolist() == ids("a")


def test_every_answer_of_a_chat_can_be_a_request(tmp_path: Path, tokenizer: Path) -> None:
    talk = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    path = write(tmp_path, {"id": "x", "messages": [{"role": r, "content": c} for r, c in talk]})
    got = read(path, encoder=TextEncoder(tokenizer), fields=Fields(turns="all"))
    assert [(r[0], r[2], r[3]) for r in got] == [
        ("x#0", ids("[user] a [assistant]"), ids("b")),
        ("x#1", ids("[user] a [assistant] b [user] c [assistant]"), ids("d")),
    ]


def test_an_encoder_travels_to_other_processes_as_its_paths(tokenizer: Path) -> None:
    encoder = TextEncoder(tokenizer)
    encoder.chat([{"role": "user", "content": "a"}])  # a compiled template cannot be pickled
    data = pickle.dumps(encoder)
    assert len(data) < 1000
    one, two = pickle.loads(data), pickle.loads(data)  # noqa: S301 - our own bytes
    assert one is two
    assert one.response("a b").tolist() == ids("a b")


def test_a_template_file_replaces_the_folders(tmp_path: Path, tokenizer: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ bos_token }} {{ messages[0].content }}")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (got,) = read(write(tmp_path, row), encoder=TextEncoder(tokenizer, template))
    assert got[2] == ids("<s> a")
    template.write_text("{{ raise_exception('no such role') }}")
    with pytest.raises(InputError, match="no such role"):
        read(write(tmp_path, row), encoder=TextEncoder(tokenizer, template))
    template.write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(InputError, match="cannot render"):
        read(write(tmp_path, row), encoder=TextEncoder(tokenizer, template))
    template.write_text("{% for %}")
    with pytest.raises(InputError, match="not valid"):
        read(write(tmp_path, row), encoder=TextEncoder(tokenizer, template))


@pytest.mark.parametrize("content", ["not json", '{"a": 1}'])
def test_a_file_that_is_no_tokenizer_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"no tokenizer\.json|not JSON"):
        TextEncoder(path)
    with pytest.raises(InputError, match="no such file, expected a tokenizer"):
        TextEncoder(tmp_path / "absent")


def test_text_without_a_tokenizer_is_an_error_of_the_call(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a", "response": "b"})
    with pytest.raises(InputError, match="--tokenizer"):
        list(TraceReader().read([path]))


BROKEN = [
    ("not json", "not JSON"),
    ('{"prompt_token_ids": [1], "output_token_ids": [2', "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("3", "JSON object"),
    ('{"prompt_token_ids": [1]}', "no prompt_token_ids and output_token_ids"),
    ('{"prompt_token_ids": [1], "output_token_ids": 5}', "list of token ids"),
    ('{"prompt_token_ids": [1], "output_token_ids": "5 6"}', "list of token ids"),
    ('{"prompt_token_ids": [1.5], "output_token_ids": [1]}', "float 1.5 at index 0"),
    ('{"prompt_token_ids": [1, "2"], "output_token_ids": [1]}', "at index 1"),
    ('{"prompt_token_ids": [1, null], "output_token_ids": [1]}', "at index 1"),
    ('{"prompt_token_ids": [1, true], "output_token_ids": [1]}', "truth value"),
    ('{"prompt_token_ids": [[1], [2]], "output_token_ids": [1]}', "flat list"),
    ('{"prompt_token_ids": [[1], 2], "output_token_ids": [1]}', "flat list"),
    ('{"prompt_token_ids": [-1], "output_token_ids": [1]}', "token id -1"),
    ('{"prompt_token_ids": [1], "output_token_ids": [2147483648]}', "token id 2147483648"),
    ('{"prompt_token_ids": [1], "output_token_ids": [18446744073709551615]}', "18446744073709551615"),
    ('{"prompt_token_ids": [1], "output_token_ids": [99999999999999999999999]}', "token|JSON"),
    ('{"prompt_token_ids": [NaN], "output_token_ids": [1]}', "JSON|float"),
    ('{"outputs": [{"token_ids": [1]}]}', "list of token ids"),
    ('{"prompt_token_ids": [1], "outputs": [3]}', "not an object"),
    ('{"choices": [{"token_ids": [1]}]}', "list of token ids"),
    ('{"messages": [{"role": "user", "content": "a"}]}', "does not end with an assistant"),
    ('{"messages": [3]}', "not an object"),
    ('{"messages": [{"role": "assistant"}]}', "role and a text"),
    ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "role and a text"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_broken_lines_are_counted_with_their_place_and_skipped(tmp_path: Path, line: str, reason: str) -> None:
    good = json.dumps(IDS)
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    log = BrokenLog()
    got = list(TraceReader(broken=log).read([path]))
    assert len(got) == 2
    assert log.count == 1
    assert log.first[0].line == 3
    assert any(part in log.first[0].reason for part in reason.split("|"))
    with pytest.raises(InputError, match=rf"{path.name}:3: .*; leave it out"):
        list(TraceReader(broken=BrokenLog(fatal=True, remedy="; leave it out")).read([path]))


def test_a_report_of_a_broken_line_is_short_whatever_is_in_it(tmp_path: Path) -> None:
    long = "x" * 10**5
    log = BrokenLog()
    rows = (
        {long: 1},
        {"prompt_token_ids": long, "output_token_ids": [1]},
        {"prompt_token_ids": [long], "output_ids": 1},
    )
    assert not list(TraceReader(broken=log).read([write(tmp_path, *rows)]))
    assert log.count == 3
    assert all(len(line.reason) < 400 for line in log.first)


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path, IDS, IDS)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert [row[2:] for row in read(path)] == [([1, 2], [3, 4])] * 2


def test_mixed_schemas_in_one_file(tmp_path: Path) -> None:
    path = write(tmp_path, IDS, {"input_ids": [1], "output_ids": [2]}, {"requests": [IDS, {"bad": 1}]})
    log = BrokenLog()
    got = list(TraceReader(broken=log).read([path]))
    assert [r.response.tolist() for r in got] == [[3, 4], [2], [3, 4]]
    assert log.count == 1


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_compressions(tmp_path: Path, kind: str) -> None:
    text = "".join(json.dumps(IDS | {"id": str(i)}) + "\n" for i in range(100)).encode()
    path = tmp_path / f"trace.jsonl.{kind}"
    path.write_bytes({"plain": text, "gz": gzip.compress(text), "zst": zstandard.compress(text)}[kind])
    assert [r[0] for r in read(path)] == [str(i) for i in range(100)]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_truncated_compression_keeps_what_was_whole(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = [IDS | {"id": str(i), "output_token_ids": rng.integers(0, 50_000, 50).tolist()} for i in range(3000)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    data = gzip.compress(text) if kind == "gz" else zstandard.compress(text)
    path = tmp_path / "trace"
    path.write_bytes(data[: len(data) // 2])
    log = BrokenLog()
    got = [r.id for r in TraceReader(broken=log).read([path])]
    assert 500 < len(got) < 3000
    assert got == [str(i) for i in range(len(got))]
    assert any("ends too early" in str(b) for b in log.first)


def test_a_spread_json_document(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"engine": "x", "requests": [IDS | {"id": "a"}], "step_order": [[0], [0]]}, indent=2))
    assert read(path) == [("a", "", [1, 2], [3, 4])]
    assert read_step_order(path) == [[0], [0]]
    path.write_text('{\n "requests": [')
    log = BrokenLog()
    assert list(TraceReader(broken=log).read([path])) == []
    assert log.count == 1
    with pytest.raises(InputError, match=r"no step_order|not JSON"):
        read_step_order(path)


def test_parquet_of_ids_and_of_text(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "ids.parquet"
    table = pa.table(
        {
            "prompt_token_ids": pa.array([[1, 2], [], [5]], pa.list_(pa.int32())),
            "output_token_ids": pa.array([[3], [4, 5], [6]], pa.large_list(pa.int64())),
            "kind": ["a", "b", "a"],
        }
    )
    pq.write_table(table, path, row_group_size=2)
    assert [r[1:] for r in read(path)] == [("a", [1, 2], [3]), ("b", [], [4, 5]), ("a", [5], [6])]
    pq.write_table(pa.table({"prompt": ["a"], "response": ["b c"]}), path)
    assert read(path, encoder=TextEncoder(tokenizer))[0][2:] == (ids("<s> a"), ids("b c"))


def test_broken_parquet_rows_and_files(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    table = pa.table({"prompt_token_ids": [[1], None, [-1]], "output_token_ids": [[2], [3], [4]]})
    pq.write_table(table, path)
    log = BrokenLog()
    assert len(list(TraceReader(broken=log).read([path]))) == 1
    assert [b.line for b in log.first] == [2, 3]
    path.write_bytes(path.read_bytes()[:-20])
    log = BrokenLog()
    assert list(TraceReader(broken=log).read([path])) == []
    assert "not readable as Parquet" in str(log.first[0])


def test_vllm_request_logs(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        "INFO 11-30 04:13:38 [logger.py:40] Started\n"
        "DEBUG 11-30 [logger.py:41] Request cmpl-1-0 details: prompt: 'hi [1]', prompt_token_ids: [1, 2], "
        "prompt_embeds shape: None.\n"
        "INFO 11-30 [logger.py:42] Received request cmpl-1-0: params: SamplingParams(n=1), lora_request: None.\n"
        "INFO 11-30 [logger.py:43] Received request old-2: prompt: 'x', params: SamplingParams(n=1), "
        "prompt_token_ids: [7], prompt_embeds shape: None, lora_request: None.\n"
        "INFO 11-30 [logger.py:44] Generated response cmpl-1-0 (streaming delta): output: 'a', "
        "output_token_ids: [9], finish_reason: None\n"
        "INFO 11-30 [logger.py:45] Generated response cmpl-1-0 (streaming complete): output: 'output_token_ids: [0]', "
        "output_token_ids: [3, 4], finish_reason: stop\n"
        "INFO 11-30 [logger.py:46] Generated response old-2: output: 'b', output_token_ids: (8, 9), "
        "finish_reason: length\n"
        "INFO 11-30 [logger.py:47] Generated response lost-3: output: 'b', output_token_ids: [8], "
        "finish_reason: length\n"
    )
    log = BrokenLog()
    got = [(r.id, r.prompt.tolist(), r.response.tolist()) for r in TraceReader(broken=log).read([path])]
    assert got == [("cmpl-1-0", [1, 2], [3, 4]), ("old-2", [7], [8, 9])]
    assert log.count == 1
    assert "VLLM_LOGGING_LEVEL=DEBUG" in str(log.first[0])


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps([IDS]))
    with pytest.raises(InputError, match="pickle"):
        list(TraceReader().read([path]))


def test_names_and_globs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = find_files([f"{tmp_path}/*.jsonl", f"{tmp_path}/a.jsonl", f"{tmp_path}/**/c.jsonl"])
    assert [p.name for p in found] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    for pattern, says in ((f"{tmp_path}/*.json", "no file matches"), (str(tmp_path), "is a folder")):
        with pytest.raises(InputError, match=says):
            find_files([pattern])
    assert find_files(["smollm2"])[0].name == "smollm2.jsonl"


def test_a_line_of_100_mb_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt_token_ids": [')
        for _ in range(100):
            file.write(b"1," * 500_000)
        file.write(b'1], "output_token_ids": [1]}\n' + json.dumps(IDS).encode() + b"\n")
    log = BrokenLog()
    tracemalloc.start()
    got = list(TraceReader(broken=log, max_line_bytes=2**20).read([path]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(got) == 1
    assert log.first[0].line == 1
    assert peak < 16 * 2**20


@given(st.lists(st.integers(0, 2**31 - 1)))
@settings(max_examples=50, deadline=None)
def test_ids_survive_as_they_are(values: list[int]) -> None:
    got = token_ids(values, "x")
    assert got.dtype == np.int32
    assert got.tolist() == values


@given(st.text(max_size=200), st.sampled_from(['{"prompt_token_ids": ', "[", "", '{"requests": [{}', "PAR1"]))
@settings(max_examples=100, deadline=None)
def test_no_text_brings_the_reader_down(tmp_path_factory: pytest.TempPathFactory, text: str, start: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_text(start + text, encoding="utf-8", errors="surrogatepass")
    for request in TraceReader(broken=BrokenLog()).read([path]):
        assert isinstance(request, RecordedRequest)
