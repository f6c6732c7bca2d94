"""Hardware profiles: every shipped number carries its unit and source, and every malformed file is one clear line."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from specplan.errors import InputError, NotFoundError
from specplan.specs.hardware import list_accelerators, load_accelerator, shipped_profiles_folder
from specplan.units import GIB, MIB
from specplan.values.hardware import Accelerator

CARDS = list_accelerators()

PROFILE = """\
name: my-card
vendor: Maker
family: mine
memory:
  driver: {value: 80 GiB, source: label}
  torch: {value: null, source: not a torch device}
bandwidth: {value: 3000 GB/s, source: label}
flops:
  bfloat16: {value: 900 TFLOP/s, source: label}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "card.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_at_least_25_accelerators_from_v100_to_b300_with_amd_and_a_cpu():
    names = {card.name for card in CARDS}
    assert len(names) >= 25
    wanted = "v100-sxm2-16gb t4 a10 a10g a30 l4 l40s a100-sxm-40gb a100-sxm-80gb h100-pcie h100-sxm h100-nvl h20 h200"
    wanted += " gh200-96gb b200 gb200 b300 gb300 rtx-3090 rtx-4090 rtx-5090 rtx-pro-6000 mi210 mi250x mi300x mi325x"
    assert set(wanted.split()) | {"mi355x", "gaudi2", "gaudi3", "cpu"} <= names


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_each_number_of_a_profile_has_a_source_in_words(card: Accelerator):
    keys = {
        "memory_driver_bytes": "memory.driver",
        "memory_torch_bytes": "memory.torch",
        "bandwidth": "bandwidth",
        "link_bandwidth": "link",
        "pcie_bandwidth": "pcie",
        "tdp_w": "tdp",
    }
    given = {key for field, key in keys.items() if getattr(card, field) is not None}
    given |= {f"flops.{name}" for name in card.flops}
    assert given <= set(card.sources)
    assert all(len(card.sources[key]) > 8 for key in given)
    assert card.bandwidth > 0
    assert all(rate > 0 for rate in card.flops.values())


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_what_torch_sees_is_never_more_than_the_driver_reports(card: Accelerator):
    if card.memory_driver_bytes is not None and card.memory_torch_bytes is not None:
        # torch prints GiB with two decimals, so a nominal size may be rounded up by half of the last one.
        assert card.memory_torch_bytes <= card.memory_driver_bytes + 0.005 * GIB


def test_an_h100_has_two_memories():
    card = load_accelerator("h100-sxm")
    assert card.memory_driver_bytes == 81559 * MIB
    assert card.memory_torch_bytes == 81090 * MIB
    assert f"{card.memory_driver_bytes / GIB:.2f} {card.memory_torch_bytes / GIB:.2f}" == "79.65 79.19"
    assert (card.bandwidth, card.flops["bfloat16"], card.link_bandwidth) == (3350e9, 989e12, 450e9)


def test_b200_bandwidth_names_the_disagreement_of_its_sources():
    assert "8000" in load_accelerator("b200").sources["bandwidth"]


def test_numbers_from_memory_say_so():
    assert "unverified" in load_accelerator("rtx-5090").sources["bandwidth"]
    assert "unverified" in load_accelerator("mi355x").sources["flops.bfloat16"]


def test_names_and_aliases_are_unique():
    spelled = [name for card in CARDS for name in (card.name, *card.aliases)]
    assert len(spelled) == len(set(spelled))
    assert all(card.name == path.stem for card, path in zip(CARDS, sorted(_files()), strict=True))


def _files() -> list[Path]:
    return list(shipped_profiles_folder().glob("*.yaml"))


def test_no_profile_names_a_place_on_a_machine():
    for path in _files():
        text = path.read_text("utf-8")
        assert "/home" not in text
        assert "/tmp" not in text  # noqa: S108 - looked for, not used


@pytest.mark.parametrize("spelling", ["h100-sxm", "H100 SXM", "h100_sxm", "h100", "H100-SXM5"])
def test_a_card_is_found_by_any_common_spelling(spelling: str):
    assert load_accelerator(spelling).name == "h100-sxm"


def test_a_card_of_a_calibrated_family_borrows_and_says_from_where():
    h200, h100 = load_accelerator("h200"), load_accelerator("h100-sxm")
    assert h100.calibration is not None
    assert h200.calibration == h100.calibration
    assert h200.calibration.card == "h100-sxm"


def test_a_card_of_an_unmeasured_family_has_no_calibration():
    assert load_accelerator("mi355x").calibration is None


@pytest.mark.parametrize("card", [c for c in CARDS if c.calibration is not None], ids=lambda card: card.name)
def test_calibration_is_dated_sourced_and_below_the_peaks(card: Accelerator):
    found = card.calibration
    assert found is not None
    assert found.date
    assert found.source
    numbers = [f.name for f in fields(found) if f.name not in ("card", "date", "source", "sources")]
    for name in numbers:
        value = getattr(found, name)
        assert value is None or (name in found.sources and value >= 0)
        assert not name.endswith("fraction") or value is None or value <= 1


def test_a_profile_file_is_read_with_units(tmp_path: Path):
    card = load_accelerator(write(tmp_path, PROFILE))
    assert (card.name, card.memory_driver_bytes, card.bandwidth) == ("my-card", 80 * GIB, 3e12)
    assert card.memory_torch_bytes is None
    assert card.sources["memory.torch"] == "not a torch device"
    assert card.calibration is None


def test_a_calibration_block_is_read(tmp_path: Path):
    block = (
        "calibration:\n  date: 2026-11-30\n  source: my bench\n"
        "  bandwidth_fraction: {value: 0.8, source: stream}\n  launch: {value: 12 us, source: trace}\n"
    )
    found = load_accelerator(write(tmp_path, PROFILE + block)).calibration
    assert found is not None
    assert (found.card, found.date, found.bandwidth_fraction, found.launch_s) == ("my-card", "2026-11-30", 0.8, 12e-6)


BAD_FILES = {
    "bare number": (("{value: 3000 GB/s, source: label}", "3000"), "3000 carries no source; write {value: 3350 GB/s"),
    "bare quantity": (("{value: 3000 GB/s, source: label}", "3000 GB/s"), "carries no source; write"),
    "number without unit": (("3000 GB/s", "3000"), '3000 has no unit; write a bandwidth quantity such as "3350 GB/s"'),
    "no source": ((", source: label}\nflops", "}\nflops"), "bandwidth: has no source"),
    "empty source": (("3000 GB/s, source: label", "3000 GB/s, source: '  '"), "bandwidth: has no source"),
    "no value": (("value: 3000 GB/s, ", ""), "bandwidth: has no value"),
    "negative": (("3000 GB/s", "-3000 GB/s"), "must be finite and at least 0"),
    "zero": (("3000 GB/s", "0 GB/s"), "must be greater than 0"),
    "NaN": (("3000 GB/s", ".nan"), "nan has no unit"),
    "infinite": (("3000 GB/s", ".inf"), "inf has no unit"),
    "overflow": (("3000 GB/s", "1e400 GB/s"), "must be finite"),
    "wrong dimension": (("3000 GB/s", "3000 GiB"), "unknown bandwidth unit 'GiB'"),
    "unit of the wrong case": (("80 GiB", "80 gib"), "unknown memory unit 'gib'"),
    "text": (("3000 GB/s", "fast"), "is not a number with a unit"),
    "a list": (("3000 GB/s", "[3000 GB/s]"), "expected a bandwidth quantity"),
    "unknown field": (
        ("vendor: Maker", "vendor: Maker\ncolour: green"),
        "unknown field colour; known here: name, vendor",
    ),
    "unknown field of a number": (
        ("source: label}\nflops", "source: label, sauce: x}\nflops"),
        "unknown field bandwidth.sauce",
    ),
    "missing name": (("name: my-card\n", ""), "field name is missing"),
    "missing bandwidth": (("bandwidth: {value: 3000 GB/s, source: label}\n", ""), "field bandwidth is missing"),
    "missing memory": (("memory:\n", "memory_:\n"), "memory"),
    "one memory only": (("  torch: {value: null, source: not a torch device}\n", ""), "field memory.torch is missing"),
    "memory as one number": (
        (PROFILE[PROFILE.index("memory:") : PROFILE.index("bandwidth:")], "memory: 80 GiB\n"),
        "has two values, what the driver reports and what torch sees",
    ),
    "no known memory": (("80 GiB, source: label", "null, source: label"), "at least one of the two must be known"),
    "null without a reason": (("{value: null, source: not a torch device}", "null"), "carries no source"),
    "null bandwidth": (("value: 3000 GB/s", "value: null"), "bandwidth is null"),
    "no rates": (("flops:\n  bfloat16: {value: 900 TFLOP/s, source: label}\n", "flops: {}\n"), "flops"),
    "null rates": (("900 TFLOP/s", "null"), "flops has no known rate"),
    "unknown format": (("bfloat16:", "bf17:"), "unknown number format 'bf17'"),
    "broken YAML": (("flops:", "flops: [}"), "broken YAML"),
    "a key twice": (("vendor: Maker", "vendor: Maker\nvendor: Other"), "'vendor' appears twice"),
    "a list of profiles": ((PROFILE, "- name: x\n"), "expected fields such as"),
    "empty": ((PROFILE, ""), "expected fields such as"),
    "empty name": (("name: my-card", "name: ''"), "name"),
    "fraction above 1": (
        (PROFILE, PROFILE + "calibration: {date: '2026', source: x, bandwidth_fraction: {value: 1.2, source: y}}\n"),
        "at most 1",
    ),
    "fraction as text": (
        (PROFILE, PROFILE + "calibration: {date: '2026', source: x, matmul_fraction: {value: 70 %, source: y}}\n"),
        "a fraction of the peak",
    ),
    "undated calibration": (
        (PROFILE, PROFILE + "calibration: {source: x, launch: {value: 1 us, source: y}}\n"),
        "field calibration.date is missing",
    ),
    "negative latency": (
        (PROFILE, PROFILE + "calibration: {date: '2026', source: x, launch: {value: -1 us, source: y}}\n"),
        "must be finite and at least 0",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_profile_is_one_line_that_names_file_and_field(case: str, tmp_path: Path):
    (old, new), expected = BAD_FILES[case]
    assert old in PROFILE
    path = write(tmp_path, PROFILE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_accelerator(path)
    message = str(caught.value)
    assert expected in message
    assert str(path) in message
    assert "\n" not in message


def test_a_binary_file_is_refused_as_such(tmp_path: Path):
    path = tmp_path / "card.yaml"
    path.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(InputError, match="a binary file, expected a hardware profile"):
        load_accelerator(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="is a folder"):
        load_accelerator(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_accelerator(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("wrong", "near"), [("h100sxm", "h100-sxm"), ("a100-sxm-80", "a100-sxm-80gb"), ("mi300", "mi300x")]
)
def test_an_unknown_card_lists_near_misses(wrong: str, near: str):
    with pytest.raises(NotFoundError, match="did you mean") as caught:
        load_accelerator(wrong)
    assert near in str(caught.value)


@pytest.mark.parametrize("nonsense", ["", "   ", "zzzzzz", "\x00"])
def test_nonsense_names_are_not_found_without_a_traceback(nonsense: str):
    with pytest.raises(NotFoundError, match="no accelerator is called"):
        load_accelerator(nonsense)


def test_the_command_line_prints_one_line_and_exits_with_2(tmp_path: Path):
    path = write(tmp_path, PROFILE.replace("3000 GB/s", "3000"))
    done = subprocess.run([sys.executable, "-m", "specplan", "hardware", str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "has no unit" in done.stderr


def test_a_card_is_shown_with_every_source_and_its_calibration_apart():
    command = [sys.executable, "-m", "specplan", "hardware", "h200"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    datasheet, _, calibration = shown.partition("calibration of ")
    rows = [line for line in datasheet.splitlines() if line and not line.startswith(" ")]
    assert len(rows) == 1 + 9  # the card's name, two memories, bandwidth, three rates, links and power
    assert all(len(row.rstrip().split("  ")[-1]) > 8 for row in rows[1:]), "each number has its source beside it"
    assert "borrowed from h100-sxm" in calibration
    assert "28.000 us" in calibration
