"""One few-shot run as it is done today: Hugging Face's Trainer, its own tokenising, evaluation, checkpoints and selection.

    python scripts/measure/speed/hf_trainer.py JOB.json      (started by scripts/measure/speed; prints its result as JSON)

Padding as in the library's run_glue example: all to `max_length`, or with the dynamic collator to the longest of a batch.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """`rows`: a JSON file of columns `text` (`text_pair`) and `label` for each of train, dev and test. `steps`: updates;
    the checkpoint is selected by accuracy on dev, looked at `every` updates."""

    encoder: str
    rows: str
    folder: str
    padding: str
    threads: int
    steps: int
    every: int
    batch_size: int
    lr: float
    seed: int
    max_length: int


def run(job: Job) -> dict[str, Any]:
    import numpy as np
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        default_data_collator,
        set_seed,
    )
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    torch.set_num_threads(job.threads)
    set_seed(job.seed)
    rows = json.loads(Path(job.rows).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)

    def tokenised(batch: dict[str, Any]) -> Any:
        texts = [batch[name] for name in ("text", "text_pair") if name in batch]
        padding = "max_length" if job.padding == "max_length" else False
        return tokenizer(*texts, padding=padding, max_length=job.max_length, truncation=True)

    sets = {
        name: Dataset.from_dict(columns).map(tokenised, batched=True, load_from_cache_file=False)
        for name, columns in rows.items()
    }
    model = AutoModelForSequenceClassification.from_pretrained(
        job.encoder, num_labels=len(set(rows["train"]["label"])), dtype=torch.float32
    )
    arguments = TrainingArguments(
        output_dir=job.folder,
        max_steps=job.steps,
        per_device_train_batch_size=job.batch_size,
        learning_rate=job.lr,
        eval_strategy="steps",
        eval_steps=job.every,
        save_strategy="steps",
        save_steps=job.every,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        seed=job.seed,
        logging_strategy="no",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=sets["train"],
        eval_dataset=sets["dev"],
        compute_metrics=lambda found: {"accuracy": float((np.argmax(found[0], axis=1) == found[1]).mean())},
        processing_class=tokenizer,
        data_collator=default_data_collator if job.padding == "max_length" else DataCollatorWithPadding(tokenizer),
    )
    began = time.time()
    trainer.train()
    tested = trainer.predict(sets["test"])
    ended = time.time()
    return {
        "began": began,
        "ended": ended,
        "steps": trainer.state.global_step,
        "evaluations": sum("eval_accuracy" in entry for entry in trainer.state.log_history),
        "selected": Path(trainer.state.best_model_checkpoint or "?-0").name.rsplit("-", 1)[1],
        "dev": trainer.state.best_metric,
        "test": tested.metrics["test_accuracy"],
    }


def write(job: Job, path: Path) -> Path:
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(json.dumps(run(Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))))
