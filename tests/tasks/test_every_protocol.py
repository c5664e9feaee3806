"""What holds of every protocol: sets share no text, files and their order change nothing, subsets differ, further texts hold the training set."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks.task_files import cut, forms, skewed

from harness.errors import UserError
from harness.tasks.protocol import Protocol
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.task import TASKS

SST2 = TASKS["sst2"]
SPLIT = [name for name, protocol in PROTOCOLS.items() if not protocol.scores_dev]
every_protocol = pytest.mark.parametrize("protocol", [PROTOCOLS[name] for name in SPLIT], ids=SPLIT)


@every_protocol
def test_sets_share_no_text_and_are_the_same_from_any_files(protocol: Protocol, tmp_path: Path) -> None:
    one, other = (skewed(tmp_path / str(order), order) for order in (0, 1))
    digests = set()
    for size, subset in ((8, 0), (20, 1), (20, 3)):
        sets = cut(protocol, SST2, one, size, subset)
        assert [each.digest for each in sets] == [each.digest for each in cut(protocol, SST2, other, size, subset)]
        assert [each.texts for each in sets] == [each.sorted().texts for each in sets]
        by_text = protocol.name.startswith(("own", "k_shot"))
        training, dev, test = (forms(each) if by_text else set(each.texts) for each in sets)
        assert training
        assert not training & dev
        assert not (training | dev) & test
        digests.add(sets[0].digest)
        if by_text:  # a task that is not the user's is tested on its whole development set
            assert sets[2].digest == one.load(SST2, "validation").digest
    assert len(digests) == 3


@every_protocol
def test_further_texts_hold_the_training_set_and_none_of_dev_and_test(protocol: Protocol, tmp_path: Path) -> None:
    """As many texts as training examples are the examples themselves: the same digest, so the same stage."""
    one, other = (skewed(tmp_path / str(order), order) for order in (0, 1))
    labelled, *held_out = cut(protocol, SST2, one, 20, 1)
    count, most = len(labelled), len(protocol.text_pool(SST2, one, 20, 1))
    sets = [protocol.texts(SST2, one, 20, 1, number) for number in (count, count + 20, most)]
    assert sets[0].digest == labelled.unlabelled().digest
    assert [len(each) for each in sets] == [count, count + 20, most]
    assert set(sets[0].texts) < set(sets[1].texts) < set(sets[2].texts)
    assert not set(sets[2].texts) & {text for each in held_out for text in each.texts}
    assert protocol.texts(SST2, other, 20, 1, count + 20).digest == sets[1].digest
    assert protocol.texts(SST2, one, 20, 2, count + 20).digest != sets[1].digest
    for wrong in (count - 1, most + 1):
        with pytest.raises(UserError, match="give a number between them"):
            protocol.texts(SST2, one, 20, 1, wrong)
