"""Stream configs: frozen, registered while they live, and what the operators get of them."""

import copy
import dataclasses
import gc
import hashlib
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from strategies import make_config
from support import small_config
from torch._dynamo.testing import CompileCounter

from scmp_kernels import _C
from scmp_kernels.sc.config import StreamConfig, canonical_json, config_argument


def alive():
    gc.collect()
    return _C.registered_configs()


# --- StreamConfig --------------------------------------------------------------------------------


def test_equal_to_the_plain_dict_and_serialised_like_it():
    plain = small_config()
    config = StreamConfig(plain)
    assert config == plain and plain == config and isinstance(config, dict)
    assert json.dumps(config) == json.dumps(plain)
    assert config["sng"] == plain["sng"] and config["rng_pool"] == plain["rng_pool"]
    assert json.loads(config.text) == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.__setitem__("x", 1),
        lambda c: c.__delitem__("sng"),
        lambda c: c.update(x=1),
        lambda c: c.pop("sng"),
        lambda c: c.popitem(),
        lambda c: c.clear(),
        lambda c: c.setdefault("x", 1),
        lambda c: c.__ior__({"x": 1}),
        lambda c: setattr(c, "_text", ""),
        lambda c: delattr(c, "_text"),
        lambda c: c["sng"].__setitem__("q", []),
        lambda c: c["sng"]["q"].append(1),
        lambda c: c["sng"]["q"].extend([1]),
        lambda c: c["sng"]["q"].insert(0, 1),
        lambda c: c["sng"]["q"].pop(),
        lambda c: c["sng"]["q"].remove(c["sng"]["q"][0]),
        lambda c: c["sng"]["q"].clear(),
        lambda c: c["sng"]["q"].reverse(),
        lambda c: c["sng"]["q"].sort(),
        lambda c: c["sng"]["q"].__iadd__([1]),
        lambda c: c["sng"]["q"].__imul__(2),
        lambda c: c["sng"]["q"].__setitem__(0, 1),
        lambda c: c["sng"]["q"].__delitem__(0),
        lambda c: c["sng"]["q"][0].update(rng_id=1),
        lambda c: c["sng"]["q"][0]["scramble"].__setitem__(0, 2),
    ],
)
def test_frozen_at_every_depth(change):
    config = StreamConfig(small_config())
    with pytest.raises(TypeError, match="frozen"):
        change(config)
    assert config == small_config() and json.loads(config.text) == small_config()


def test_calling_init_again_changes_nothing():
    config = StreamConfig(small_config())
    config.__init__({"x": 1})
    config["sng"]["q"].__init__([1])
    assert config == small_config()


def test_later_changes_of_the_source_do_not_reach_it():
    plain = small_config()
    config = StreamConfig(plain)
    plain["rng_pool"][0]["type"] = "lfsr"
    assert config == small_config()


def test_digest_is_of_the_contents_not_of_their_order():
    a = StreamConfig(small_config())
    b = StreamConfig(dict(reversed(small_config().items())))
    assert a.digest == b.digest and a.text == b.text
    assert a.digest != StreamConfig(small_config(seed=1)).digest
    text = canonical_json(small_config())
    assert a.digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert canonical_json({"b": None, "a": (1, 2)}) == '{"a":[1,2],"b":null}'


def test_registered_as_long_as_one_of_its_kind_lives():
    before = alive()
    a = StreamConfig(small_config(seed=101))
    assert alive() == before + 1
    b = StreamConfig(small_config(seed=101))
    assert alive() == before + 1
    c = StreamConfig(small_config(seed=102))
    assert alive() == before + 2
    del a
    assert alive() == before + 2
    del b
    assert alive() == before + 1
    del c
    assert alive() == before


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        *(lambda c, p=p: pickle.loads(pickle.dumps(c, p)) for p in range(6)),
    ],
)
def test_copies_register_anew(duplicate):
    before = alive()
    config = StreamConfig(small_config(seed=103))
    twin = duplicate(config)
    assert type(twin) is StreamConfig and twin is not config
    assert twin == config and twin.digest == config.digest and twin.text == config.text
    with pytest.raises(TypeError, match="frozen"):
        twin["sng"]["q"].append(1)
    del config
    assert alive() == before + 1
    del twin
    assert alive() == before


def test_parts_of_it_can_be_copied_and_pickled():
    part = StreamConfig(small_config())["sng"]
    assert copy.deepcopy(part) == part == pickle.loads(pickle.dumps(part))


def test_unpickles_in_another_process():
    config = StreamConfig(small_config(seed=104))
    code = (
        "import pickle, sys; from scmp_kernels import _C; "
        "c = pickle.loads(sys.stdin.buffer.read()); print(_C.registered_configs(), c.digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(config), stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode().split() == ["1", config.digest]


@pytest.mark.parametrize("config", [{"a": {1, 2}}, {"a": np.int64(3)}, {"a": float("nan")}])
def test_what_json_cannot_hold(config):
    for function in (StreamConfig, config_argument):
        with pytest.raises(ValueError, match="sc_matmul: config must be a dict that JSON can hold"):
            function(config)


def test_not_a_dict():
    with pytest.raises(ValueError, match="StreamConfig: config must be a dict, got list"):
        StreamConfig([1])


# --- config_argument -----------------------------------------------------------------------------


def test_config_argument_in_eager_mode():
    config = StreamConfig(small_config())
    assert config_argument(None) is None
    assert config_argument(config) == config.digest
    assert config_argument("text") == "text"
    plain = small_config()
    assert config_argument(plain) == config.text
    plain["rng_pool"][0]["type"] = "lfsr"
    assert json.loads(config_argument(plain)) == plain
    with pytest.raises(ValueError) as caught:
        config_argument(3)
    assert str(caught.value) == (
        "sc_matmul: config must be a dict, a config from scmp_kernels.sc.config_helpers or None, "
        "got int"
    )


SEEN = []


class Recorder(torch.nn.Module):
    """Notes in SEEN what config_argument gives while its forward runs."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x):
        SEEN.append(config_argument(self.config))
        return x + 1


def _make_fx(mode, pre_dispatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    return lambda f: make_fx(f, tracing_mode=mode, pre_dispatch=pre_dispatch)(torch.ones(2))


def _fake(f):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        f(torch.ones(2))


@pytest.mark.parametrize(
    "record",
    [
        lambda f: torch.export.export(f, (torch.ones(2),), strict=False),
        lambda f: torch.jit.trace(f, (torch.ones(2),), check_trace=False),
        torch.fx.symbolic_trace,
        _fake,
        *(_make_fx(mode, pre) for mode in ("real", "fake", "symbolic") for pre in (False, True)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.:DeprecationWarning")
def test_no_digest_where_a_graph_is_recorded(record):
    recorder = Recorder(StreamConfig(small_config()))
    SEEN.clear()
    record(recorder)
    assert SEEN and set(SEEN) == {recorder.config.text}
    SEEN.clear()
    recorder(torch.ones(2))
    assert SEEN == [recorder.config.digest]


def test_dynamo_takes_the_text_and_recompiles_for_another_config():
    def function(x, config):
        return x * len(config_argument(config))

    graphs = CompileCounter()
    compiled = torch.compile(function, backend=graphs, fullgraph=True)
    a, same, b = (StreamConfig(small_config(seed)) for seed in (1, 1, 12345))
    for config in (a, same, b, a):
        assert compiled(torch.ones(1), config).item() == len(config.text)
    assert graphs.frame_count == 2


def test_a_plain_dict_in_a_fullgraph_region_is_an_error():
    compiled = torch.compile(
        lambda x, config: x * len(config_argument(config)), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="sc_matmul: config must come from"):
        compiled(torch.ones(1), small_config())


def test_a_dataclass_that_holds_a_config_becomes_a_dict():
    @dataclasses.dataclass
    class Settings:
        config: dict

    config = StreamConfig(make_config(1, positions=2, prec=8))
    assert dataclasses.asdict(Settings(config)) == {"config": config}
