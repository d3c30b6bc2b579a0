"""Tests of the reader of training logs: the values, and the messages for logs that are not right."""

import json
import math
import tempfile
import unittest
from pathlib import Path

from run_log import MOST_BYTES, BadLog, RunLog, parse_log, read_log

RUN = (
    b'{"record":"run","model":"cnn","parameters":1199882,"strategy":"ddp","ranks":2,"data":2,"tensor":1,"pipeline":1,'
    b'"batch":64,"seed":1,"optimizer":"sgd","lr":0.05,"threads":1,"precision":"fp32","time":"2026-11-23T14:00:00Z"}\n'
)
STEP = (
    b'{"record":"step","step":1,"epoch":1,"loss":2.31,"lr":0.05,"samples":64,"load_s":0.0001,"compute_s":0.011,'
    b'"exposed_s":0.001,"step_s":0.0125,"skipped":false,"grad_norm":1.5}\n'
)
EPOCH = b'{"record":"epoch","epoch":1,"step":938,"test_loss":0.4,"test_accuracy":0.88}\n'
RESULT = b'{"record":"result","steps":938,"epochs":1,"loss":0.35,"seconds":12.5,"samples_per_s":5000.1}\n'


class RunLogTest(unittest.TestCase):
    def refusal(self, data: bytes) -> str:
        with self.assertRaises(BadLog, msg=data) as raised:
            parse_log("runs/one.jsonl", data)
        return str(raised.exception)

    def test_a_log_has_the_values_of_its_records(self) -> None:
        log = parse_log("some/where/ddp 2.jsonl", RUN + STEP + b"\r\n" + EPOCH + RESULT)
        self.assertEqual((log.name, log.model, log.strategy), ("ddp 2", "cnn", "ddp"))
        self.assertEqual((log.optimizer, log.precision, log.lr), ("sgd", "fp32", 0.05))
        self.assertEqual((log.parameters, log.batch, log.threads, log.seed), (1_199_882, 64, 1, 1))
        self.assertEqual((log.ranks, log.tensor, log.pipeline), (2, 1, 1))
        (step,) = log.steps
        self.assertEqual((step.step, step.loss), (1, 2.31))
        self.assertEqual((step.load_s, step.compute_s, step.exposed_s, step.step_s), (0.0001, 0.011, 0.001, 0.0125))
        (epoch,) = log.epochs
        self.assertEqual((epoch.step, epoch.test_accuracy), (938, 0.88))
        self.assertEqual(log.samples_per_s, 5000.1)

    def test_unknown_records_are_ignored_and_null_is_no_number(self) -> None:
        log = parse_log(
            "a",
            b'{"record":"run","ranks":1,"colour":["blue",{}],"model":null}\n{"record":"weather","step":-3}\n'
            b'{"record":"step","step":7,"loss":null,"load_s":null}\n{"record":"step","step":8,"loss":1e300}\n'
            b'{"record":"step","step":9,"loss":1e400}\n{"record":"epoch","step":8,"test_accuracy":null}\n',
        )
        self.assertEqual(log.model, "")
        first = log.steps[0]
        values = [first.load_s, first.step_s, *(step.loss for step in log.steps)]
        values += [log.epochs[0].test_accuracy, log.samples_per_s]
        self.assertEqual([math.isnan(value) for value in values], [True] * 7, values)

    def test_a_last_line_that_is_cut_off_is_ignored(self) -> None:
        for size in range(len(STEP) - 2):  # the closing brace and the end of the line are missing
            self.assertEqual(len(parse_log("a", RUN + STEP + STEP[:size]).steps), 1, size)
        self.assertEqual(len(parse_log("a", RUN + STEP + STEP[:-1]).steps), 2)  # only the end of the line is missing

    def test_a_resumed_run_may_repeat_its_run_record(self) -> None:
        log = parse_log("resumed", RUN + STEP + RUN.replace(b'"ranks":2', b'"ranks":4') + STEP)
        self.assertEqual((log.ranks, len(log.steps)), (2, 2))

    def test_a_bad_line_is_named(self) -> None:
        cut = STEP[:30]
        for data, message in (
            (RUN + cut + b"\n" + STEP, "runs/one.jsonl, line 2: "),
            (RUN + cut + b"\n", "line 2: "),  # the line has an end, so it was not cut off
            (RUN + STEP + b"\n\nloss 2.3", 'line 5: "loss 2.3" is not a JSON object: fix or remove the line'),
            (b"\x7fELF\x02\x01", 'line 1: "?ELF??" is not a JSON object'),
            (RUN + b"[1, 2]\n", 'line 2: "[1, 2]" is not a JSON object'),
            (RUN + b'{"record":"step","step":1,"loss":NaN}\n', 'line 2: "{"record":"step","step":..." is not'),
            (RUN + b'{"record":"\xff"}\n', "is not a JSON object"),
            (RUN + b"[" * 100_000 + b"\n", 'line 2: "[[[[[[[[[[[[[[[[[[[[[[[[..." is not a JSON object'),
            (RUN + b"{}\n", 'line 2: there is no "record" field'),
            (RUN + b'{"record":3}\n', 'line 2: there is no "record" field'),
        ):
            self.assertIn(message, self.refusal(data))

    def test_a_bad_field_is_named(self) -> None:
        self.assertIn('line 1: "ranks" is missing: fix or remove the line', self.refusal(b'{"record":"run"}\n'))
        for ranks in ("0", "-1", "1.5", '"2"', "1000001", "[]", "true"):
            record = f'{{"record":"run","ranks":{ranks}}}\n'.encode()
            self.assertIn('line 1: "ranks" should be a whole number of 1 to 1000000: fix', self.refusal(record))
        for fields, message in (
            ({"record": "step", "loss": 1}, '"step" is missing'),
            ({"record": "step", "step": 1, "loss": "low"}, '"loss" should be a number or null'),
            ({"record": "step", "step": 1, "load_s": -1}, '"load_s" should be a number of 0 to'),
            ({"record": "epoch", "step": 1, "test_accuracy": 88}, '"test_accuracy" should be a number of 0 to 1'),
            ({"record": "result", "samples_per_s": True}, '"samples_per_s" should be a number'),
        ):
            self.assertIn(f"line 2: {message}", self.refusal(RUN + json.dumps(fields).encode() + b"\n"))
        self.assertIn('"model" should be a string', self.refusal(b'{"record":"run","ranks":1,"model":5}\n'))
        self.assertIn('"seed" should be a whole number of at', self.refusal(b'{"record":"run","ranks":1,"seed":-5}\n'))

    def test_a_log_without_a_run_is_refused(self) -> None:
        self.assertIn("runs/one.jsonl is empty: name a log that", self.refusal(b""))
        for data in (b"\n \n", STEP, RUN[:40]):
            self.assertIn('runs/one.jsonl has no "run" record: name a log that', self.refusal(data))

    def test_a_file_beyond_the_limit_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "big.jsonl"
            path.write_bytes(RUN)
            self.assertEqual(read_log(path), RunLog(**vars(parse_log("big.jsonl", RUN))))
            with path.open("r+b") as file:
                file.truncate(MOST_BYTES + 1)  # a sparse file
            with self.assertRaisesRegex(BadLog, "big.jsonl is bigger than 256 MB"):
                read_log(path)


if __name__ == "__main__":
    unittest.main()
