"""Test predictions from the folder of a run alone, and the model card that they need."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fedquorum.errors import DataError, RunError, SettingsError
from fedquorum.records.safe_files import SafeRunDir
from PIL import Image

from client_app.data import load_data
from client_app.data.partitioned import PartitionedData
from conf.compose import compose_overrides
from server_app.api.result import RunResult
from server_app.runs.model_card import (
    CARD_FORMAT,
    compute_sha256,
    tag_infinite,
    to_strict_json,
    untag_infinite,
)
from server_app.runs.prediction import TargetInfo
from tests.builders_runs import read_rows, run_here

QUICK = ("experiment=custom", "strategy=fedavg", "rounds=2", "client.local_epochs=1")
RECORDS_PAGE = Path(__file__).parents[3] / "docs" / "records.md"


def write_patients(folder: Path) -> Path:
    """Write a table with gaps and categories; clinics differ in their scales."""
    rng = np.random.default_rng(0)
    lines = ["clinic,age,smoker,dose,ill"]
    for shift, (clinic, count) in enumerate((("east", 40), ("north", 25), ("west", 12))):
        for i in range(count):
            age = "" if i % 7 == 3 else str(rng.integers(20, 80) + 5 * shift)
            smoker = rng.choice(["yes", "no", ""])
            dose = rng.normal(5 + shift, 2)
            lines.append(f"{clinic},{age},{smoker},{dose:.2f},{'yes' if dose > 5 else 'no'}")
    path = folder / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def get_table_words(path: Path) -> tuple[str, ...]:
    """Return the overrides of a run on the table."""
    return (*QUICK, "data=csv", f"data.path={path}", "data.client_column=clinic", "data.target=ill")


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the table, and a run on it."""
    folder = tmp_path_factory.mktemp("patients")
    path = write_patients(folder)
    return path, run_here(folder / "run", *get_table_words(path), "model=mlp", "client.lr=0.1")


@pytest.fixture
def moved(patients: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return the folder of the run elsewhere, to damage."""
    return Path(shutil.copytree(patients[1], tmp_path / "moved"))


def read_test_rows(words: tuple[str, ...], path: Path) -> dict[int, pd.DataFrame]:
    """Return the test rows of each client as they are in the file, all cells as text."""
    settings = compose_overrides(words).settings
    data = load_data(settings.data, settings.seed)
    assert isinstance(data, PartitionedData)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return {k: frame.iloc[data._partition.test[k]] for k in range(data.num_clients)}


@pytest.mark.parametrize("by_name", [True, False])
def test_predictions_are_those_of_the_evaluation(
    patients: tuple[Path, Path], by_name: bool
) -> None:
    """Accuracy and loss of each client's test rows are the recorded ones."""
    path, run = patients
    result = RunResult.read(run)
    recorded = {row["client"]: row for row in read_rows(run, "evaluations") if row["round"] == 2}
    names = ("east", "north", "west")
    for client, rows in read_test_rows(get_table_words(path), path).items():
        predicted = result.predict(rows, client=names[client] if by_name else client)
        assert list(predicted.index) == list(rows.index)
        accuracy = (predicted["prediction"] == rows["ill"]).mean()
        assert accuracy == pytest.approx(recorded[client]["test_accuracy"])
        chosen = [predicted.loc[i, f"probability_{label}"] for i, label in rows["ill"].items()]
        loss = -np.mean(np.log(np.array(chosen, dtype=float)))
        assert loss == pytest.approx(recorded[client]["test_loss"], rel=1e-5)


def test_a_prediction_needs_nothing_but_the_folder(
    patients: tuple[Path, Path], moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data may be gone; the probabilities sum to 1."""
    monkeypatch.setattr("client_app.data.load.load_data", lambda *_: pytest.fail("data was read"))
    row = {"age": 40, "smoker": "yes", "dose": None, "comment": "new"}
    found = RunResult.read(moved).predict(row, client="west")
    assert list(found) == ["prediction", "probability_no", "probability_yes"]
    assert found[["probability_no", "probability_yes"]].sum(axis=1).iloc[0] == pytest.approx(1)
    best = found.iloc[0][["probability_no", "probability_yes"]].astype(float).idxmax()
    assert found.loc[0, "prediction"] == best.removeprefix("probability_")


def test_what_was_decided_for_a_row_is_a_warning(moved: Path) -> None:
    """The scale without a client, and an unseen category."""
    row = {"age": 40, "smoker": "quit", "dose": 3}
    with pytest.warns(UserWarning, match=r"taken as none|the mean of all") as notes:
        RunResult.read(moved).predict(row)
    texts = [str(note.message) for note in notes]
    assert any("the mean of all clients' statistics" in text for text in texts)
    assert any("smoker had no quit in training" in text for text in texts)
    assert all(note.filename == __file__ for note in notes)


def test_the_card_of_a_run(patients: tuple[Path, Path]) -> None:
    """Strict JSON with the documented keys; a reader needs no FedQuorum to understand it."""
    _, run = patients
    card = json.loads((run / "model_card.json").read_text(), parse_constant=pytest.fail)
    section = RECORDS_PAGE.read_text().partition("\n## `model_card.json`\n")[2]
    table = section.partition("| --- | --- |\n")[2].partition("\n\n")[0]
    documented = [line.split("|")[1] for line in table.splitlines()]
    assert list(card) == [name for names in documented for name in names.split("`")[1::2]]
    assert card["format"] == CARD_FORMAT
    assert card["model"]["class"] == "client_app.models.mlp.MLP"
    assert card["model"]["sha256"] == compute_sha256(run / "model.safetensors")
    assert card["inputs"]["order"] == ["age", "dose", "smoker=no", "smoker=yes", "smoker="]
    assert [known["name"] for known in card["inputs"]["scaling"]["clients"]] == [
        "east",
        "north",
        "west",
    ]
    assert card["target"] == {
        "kind": "class",
        "name": "ill",
        "classes": ["no", "yes"],
        "outputs": "softmax",
        "scale": None,
    }
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["data"]["fingerprint"]
    assert card["data"] == manifest["data"]
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert card["metrics"]["round"] == 2
    assert card["metrics"]["test"] == last["test"]
    assert card["settings"]["client.lr"] == 0.1
    assert card["seed"] == manifest["seed"]
    assert card["versions"]["torch"] == manifest["packages"]["torch"]


def test_the_lines_of_the_card_build_the_model(
    patients: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of the run."""
    _, run = patients
    monkeypatch.chdir(run)
    names: dict[str, Any] = {}
    exec("\n".join(json.loads(Path("model_card.json").read_text())["model"]["python"]), names)  # noqa: S102 - our own card
    expected = RunResult.read(run).load_model().state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in names["model"].state_dict().items())


def test_names_stay_out_of_the_card_if_records_keep_none(tmp_path: Path) -> None:
    """``data.names=false``: clients have ids alone."""
    words = get_table_words(write_patients(tmp_path))
    run = run_here(tmp_path / "run", *words, "data.names=false", "rounds=1")
    card = json.loads((run / "model_card.json").read_text())
    assert {known["name"] for known in card["inputs"]["scaling"]["clients"]} == {None}
    assert len(RunResult.read(run).predict({"age": 1, "dose": 2, "smoker": "no"}, client=2)) == 1


def remove_model(run: Path) -> None:
    (run / "model.safetensors").unlink()


def remove_card(run: Path) -> None:
    (run / "model_card.json").unlink()


def change_card(*keys: str, value: Any) -> Callable[[Path], None]:
    """Return a change of one value of a card."""

    def change(run: Path) -> None:
        path = run / "model_card.json"
        card = node = json.loads(path.read_text())
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        path.write_text(json.dumps(card))

    return change


def write_card(text: str) -> Callable[[Path], None]:
    """Return a change of a whole card."""

    def change(run: Path) -> None:
        (run / "model_card.json").write_text(text)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_model, r"model\.safetensors: cannot be read: there is no such file"),
        (remove_card, r"must have a model_card\.json, got none"),
        (change_card("model", "sha256", value="0"), r"its SHA-256 is not that of model_card\.json"),
        (change_card("format", value=99), "its format must be 1, got 99"),
        (change_card("inputs", value=[]), "must be a model card, got a damaged one"),
        (change_card("inputs", "kind", value="own"), "must be a model card, got a damaged one"),
        (change_card("inputs", "columns", value=3), "must be a model card, got a damaged one"),
        (change_card("target", "kind", value="x"), "the kind of target must be one of"),
        (
            change_card("model", "input_shape", value=[2**40]),
            r"model\.safetensors: cannot be read: .* allocate",
        ),
        (write_card("{"), "must be a model card, got a damaged one"),
        (write_card("[1]"), "must be a model card, got a damaged one"),
        (write_card('{"format": NaN}'), "JSON has no NaN"),
    ],
)
def test_a_damaged_run_is_one_line(
    moved: Path, damage: Callable[[Path], None], message: str
) -> None:
    """It names the file."""
    damage(moved)
    with pytest.raises(RunError, match=message) as error:
        RunResult.read(moved).predict({"age": 1, "dose": 1, "smoker": "no"}, client=0)
    assert "\n" not in str(error.value)


def test_a_card_of_an_unknown_model_is_one_line(moved: Path) -> None:
    """The models that there are are named."""
    change_card("model", "settings", value={"name": "gpt"})(moved)
    with pytest.raises(SettingsError, match="model must be one of logistic_regression, mlp"):
        RunResult.read(moved).load_model()


def test_a_card_is_no_link(moved: Path, tmp_path: Path) -> None:
    """Nothing outside the folder is read."""
    (moved / "model_card.json").rename(tmp_path / "elsewhere.json")
    (moved / "model_card.json").symlink_to(tmp_path / "elsewhere.json")
    assert SafeRunDir(moved)
    with pytest.raises(RunError, match="links are not followed"):
        RunResult.read(moved).predict({})


def test_a_model_that_diverged_is_one_line(moved: Path) -> None:
    """Not a table of NaN."""
    from safetensors.torch import load_file, save_file

    state = load_file(moved / "model.safetensors")
    save_file({k: t * math.nan for k, t in state.items()}, moved / "model.safetensors")
    change_card("model", "sha256", value=compute_sha256(moved / "model.safetensors"))(moved)
    with pytest.raises(RunError, match="must give finite outputs, got none in row 1"):
        RunResult.read(moved).predict({"age": 1, "dose": 1, "smoker": "no"}, client=0)


@pytest.mark.slow
def test_a_model_of_ones_own_needs_trust(tmp_path: Path) -> None:
    """Its arguments are as in training, infinite ones too."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, limit, note):\n        super().__init__()\n"
        "        assert limit == float('inf') and note == 'inf'\n"
        "        self.layer = nn.Linear(5, 2)\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    words = get_table_words(write_patients(tmp_path))
    own = (
        "model=module",
        f"model.path={tmp_path / 'net.py'}:Net",
        "model.args={limit:inf,note:'inf'}",
    )
    run = run_here(tmp_path / "run", *words, *own, "rounds=1")
    row = {"age": 1, "dose": 1, "smoker": "no"}
    with pytest.raises(RunError, match=r"the model in model\.path is code, .*trust=True\)"):
        RunResult.read(run).predict(row, client=0)
    assert len(RunResult.read(run, trust=True).predict(row, client=0)) == 1


def test_two_classes_with_one_output(tmp_path: Path) -> None:
    """The sigmoid of the logit is the probability of the second class."""
    words = get_table_words(write_patients(tmp_path))
    run = run_here(tmp_path / "run", *words, "client.loss=binary")
    result = RunResult.read(run)
    recorded = [r for r in read_rows(run, "evaluations") if r["round"] == 2]
    for client, rows in read_test_rows(words, tmp_path / "patients.csv").items():
        predicted = result.predict(rows, client=client)
        accuracy = (predicted["prediction"] == rows["ill"]).mean()
        assert accuracy == pytest.approx(recorded[client]["test_accuracy"])


def test_numbers_are_predicted_as_numbers(tmp_path: Path) -> None:
    """The squared error of each client's test rows is the recorded one."""
    path = write_patients(tmp_path)
    words: tuple[str, ...] = (*QUICK, "data=csv", f"data.path={path}", "data.client_column=clinic")
    words += ("data.target=dose", "data.regression=true", "client.lr=0.01")
    run = run_here(tmp_path / "run", *words)
    recorded = [r for r in read_rows(run, "evaluations") if r["round"] == 2]
    for client, rows in read_test_rows(words, path).items():
        predicted = RunResult.read(run).predict(rows, client=client)["prediction"]
        rmse = math.sqrt(np.mean((predicted - rows["dose"].astype(float)) ** 2))
        assert rmse == pytest.approx(recorded[client]["test_metric"], rel=1e-5)


def test_the_scale_of_a_target_is_reversed() -> None:
    """mean + deviation * output, in float64."""
    target = TargetInfo.from_json(
        {
            "kind": "number",
            "classes": None,
            "outputs": "number",
            "scale": {"mean": 3e8, "deviation": 10.0},
        }
    )
    assert target.build_columns(np.array([[0.5], [-1.0]]))["prediction"].tolist() == [
        300000005.0,
        299999990.0,
    ]


@pytest.mark.slow
def test_images_are_predicted_by_path(tmp_path: Path) -> None:
    """With the classes of the folders, and in any size if the images were scaled."""
    rng = np.random.default_rng(0)
    for client in ("a", "b"):
        for label, level in (("dark", 40), ("light", 200)):
            folder = tmp_path / "images" / client / label
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(level - 30, level + 30, size=(8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    words = ("data=image_folder", f"data.path={tmp_path / 'images'}", "data.image_size=[4,4]")
    run = run_here(tmp_path / "run", *QUICK, *words, "client.lr=0.1", "rounds=5")
    shutil.rmtree(tmp_path / "images" / "b")
    result = RunResult.read(run)
    dark = tmp_path / "images" / "a" / "dark"
    found = result.predict(dark)
    assert list(found.index) == [str(dark / f"{i}.png") for i in range(6)]
    assert list(found) == ["prediction", "probability_dark", "probability_light"]
    one = result.predict(dark / "2.png")
    np.testing.assert_allclose(
        one.iloc[0, 1:].astype(float), found.iloc[2, 1:].astype(float), rtol=1e-5
    )


@pytest.mark.slow
def test_texts_are_predicted_from_strings(tmp_path: Path) -> None:
    """With a target a class, without one the next character."""
    lines = ["who,text,mood"] + [
        f"{'ab'[i % 2]},{'good day' if i % 3 else 'bad night'},{'up' if i % 3 else 'down'}"
        for i in range(40)
    ]
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(lines) + "\n")
    words: tuple[str, ...] = (*QUICK, "data=text", f"data.path={path}", "data.client_column=who")
    words += ("data.text_columns=[text]", "data.length=6", "data.vocabulary_size=50")
    run = run_here(tmp_path / "classes", *words, "data.target=mood", "model=text")
    found = RunResult.read(run).predict(["good day", "bad night", "good day"])
    assert len(found) == 3
    assert found.iloc[0, 1:].tolist() == found.iloc[2, 1:].tolist()
    characters = ("data.tokens=characters", "model=lstm", "model.hidden=8", "model.embedding=4")
    run = run_here(tmp_path / "next", *words, *characters, "client.lr=1", "rounds=20")
    path.unlink()
    result = RunResult.read(run)
    found = result.predict(["good da", "bad nigh"])
    assert list(found) == ["prediction", "probability"]
    vocabulary = result._trained_model.card["inputs"]["vocabulary"]
    assert set(found["prediction"]) <= {*vocabulary, "(padding)", "(unknown)"}
    assert set("goodaybnight \n") == set(vocabulary)


def test_arrays_are_predicted_as_arrays(tmp_path: Path) -> None:
    """Of a file of arrays: a run on normalized images, whose evaluation is met."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(60, 4, 4), dtype=np.uint8)
    y = (x.mean(axis=(1, 2)) > 127).astype(np.int64)
    np.savez(
        tmp_path / "a.npz",
        x_train=x,
        y_train=y,
        client_train=np.arange(60) % 3,
        x_test=x[:30],
        y_test=y[:30],
        client_test=np.arange(30) % 3,
    )
    words = ("data=npz", f"data.path={tmp_path / 'a.npz'}", "data.partition=natural")
    run = run_here(tmp_path / "run", *QUICK, *words, "data.normalize=true", "data.priority=all")
    (tmp_path / "a.npz").unlink()
    recorded = [r for r in read_rows(run, "evaluations") if r["round"] == 2]
    for client in range(3):
        rows = np.arange(30) % 3 == client
        found = RunResult.read(run).predict(x[:30][rows])
        accuracy = (found["prediction"].astype(int) == y[:30][rows]).mean()
        assert accuracy == pytest.approx(recorded[client]["test_accuracy"])


def test_a_generated_data_set(tmp_path: Path) -> None:
    """Its rows are arrays, and its classes numbers."""
    run = run_here(tmp_path / "run", "rounds=1", "data.num_clients=3", "data.num_priority=1")
    found = RunResult.read(run).predict(np.zeros((2, 60)))
    assert list(found)[1:] == [f"probability_{i}" for i in range(10)]
    with pytest.raises(DataError, match=r"must be arrays float32 \(n, 60\)"):
        RunResult.read(run).predict(np.zeros((2, 59)))


def test_an_interrupted_run_has_the_card_of_its_model(tmp_path: Path) -> None:
    """Its last complete round, and then that of the resumed run."""
    words = get_table_words(write_patients(tmp_path))
    run = run_here(tmp_path / "run", *words, "rounds=3", "engine.stop_after_round=1")
    row = {"age": 1, "dose": 1, "smoker": "no"}
    first = RunResult.read(run)
    assert first.status == "interrupted"
    before = first.predict(row, client=0)
    assert json.loads((run / "model_card.json").read_text())["metrics"]["round"] == 1
    run_here(run, *words, "rounds=3", f"resume={run}")
    card = json.loads((run / "model_card.json").read_text())
    assert card["metrics"]["round"] == 3
    assert card["settings"]["resume"] is None
    assert not before.equals(RunResult.read(run).predict(row, client=0))


def test_json_of_numbers_that_it_lacks() -> None:
    """Strict in the card, and restored in the model's settings."""
    values = {"a": math.inf, "b": [math.nan, 1.5], "c": {"d": -math.inf}, "e": "inf", "f": True}
    assert to_strict_json(values) == {
        "a": "inf",
        "b": [None, 1.5],
        "c": {"d": "-inf"},
        "e": "inf",
        "f": True,
    }
    tagged = json.loads(json.dumps(tag_infinite(values), allow_nan=False))
    assert repr(untag_infinite(tagged)) == repr(values)


def test_a_device_predicts_with_its_own_scale(tmp_path: Path) -> None:
    """The scale stayed there: with its data the predictions are those of its evaluation."""
    frame = pd.read_csv(write_patients(tmp_path), dtype=str, keep_default_na=False)
    own = tmp_path / "own.csv"
    frame[frame["clinic"] == "east"].drop(columns="clinic").to_csv(own, index=False)
    columns = "{numbers:[age,dose],categories:{smoker:[no,yes,null]},classes:[no,yes]}"
    words: tuple[str, ...] = (
        *QUICK,
        "data=csv",
        "data.client_column=null",
        f"data.path={own}",
        "data.target=ill",
    )
    words += (f"data.columns={columns}", "data.num_clients=2", "client.lr=0.1")
    run = run_here(tmp_path / "run", *words)
    card = json.loads((run / "model_card.json").read_text())
    assert card["inputs"]["scaling"] == {"kind": "device", "common": None, "clients": []}
    result = RunResult.read(run)
    rows = pd.read_csv(own, dtype=str, keep_default_na=False)
    with pytest.raises(DataError, match="the scale of the numbers stayed on the clients' devices"):
        result.predict(rows)
    with pytest.raises(SettingsError, match="client must be the id of this device's client"):
        result.predict(rows, data=own)
    recorded = {r["client"]: r for r in read_rows(run, "evaluations") if r["round"] == 2}
    settings = compose_overrides(words).settings
    for client in (0, 1):  # their splits of the same rows differ
        data = load_data(settings.data, settings.seed).get_client(client)
        predicted = result.predict(rows, client=client, data=own)
        hits = (predicted["prediction"] == rows["ill"]).sum()
        train = recorded[client]["accuracy"] * len(data.y_train)
        test = recorded[client]["test_accuracy"] * len(data.y_test)
        assert hits == pytest.approx(train + test)


def test_a_device_knows_its_pixels(tmp_path: Path) -> None:
    """The server knows no file: 255 may be a pixel or a number."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(20, 3, 3)).astype(np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", allow_pickle=False, x_train=x, y_train=y)
    words = (
        *(*QUICK, "data=npz", f"data.path={tmp_path / 'own.npz'}", "data.partition=device"),
        *("data.num_clients=1", "data.input_shape=[1,3,3]", "data.num_classes=2"),
        "data.priority=all",
    )
    run = run_here(tmp_path / "run", *words)
    result = RunResult.read(run)
    with pytest.raises(DataError, match="the devices alone know"):
        result.predict(x)
    data = load_data(compose_overrides(words).settings.data, 0)
    assert data.get_client(0).x_train.max() <= 1
    predicted = result.predict(x, client=0, data=tmp_path / "own.npz")
    logits = result.load_model()(torch.from_numpy(x[:, None].astype(np.float32) / 255))
    assert predicted["prediction"].tolist() == [str(int(k)) for k in logits.argmax(dim=1)]
