"""As ``verl_side.py``, for verl's reward functions and managers: one request a line of pickles, served until EOF."""

import importlib
import os
import pickle
import sys
import traceback


def call(module, name, *arguments, **keywords):
    """A function of a module of ``verl.utils.reward_score``; an error as ``("raised", its type's name)``."""
    function = getattr(importlib.import_module(f"verl.utils.reward_score{module}"), name)
    try:
        return "returned", function(*arguments, **keywords)
    except Exception as error:
        return "raised", type(error).__name__


def call_all(module, name, calls):
    """``call`` of many lists of arguments."""
    return [call(module, name, *arguments) for arguments in calls]


class Letters:
    """A tokenizer whose tokens are characters; 0 is the end of the text."""

    eos_token = "\0"

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(int(i)) for i in ids if int(i) or not skip_special_tokens)

    def batch_decode(self, rows, skip_special_tokens=True):
        return [self.decode(row, skip_special_tokens) for row in rows]


def score_length(data_source, solution_str, ground_truth, extra_info=None):  # noqa: ARG001
    return {"score": len(solution_str) / 8, "right": solution_str == ground_truth}


def score_lengths(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):  # noqa: ARG001
    return [len(solution) / 8 + bonus for solution in solution_strs]


def manager(name, tensors, objects, keywords):
    """What a batch-level manager makes of a batch: its tensor and its extra info."""
    import numpy as np
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.workers.reward_manager import get_reward_manager_cls

    data = DataProto.from_dict(tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in objects.items()})
    keywords = {key: OmegaConf.create(value) if isinstance(value, dict) else value for key, value in keywords.items()}
    function = score_lengths if name == "batch" else score_length
    made = get_reward_manager_cls(name)(Letters(), 0, compute_score=function, **keywords)(data, return_dict=True)
    return made["reward_tensor"], {key: list(values) for key, values in made.get("reward_extra_info", {}).items()}


def serve(folder):
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing verl prints gets between the answers
    sys.path.insert(0, folder)
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (True, globals()[function](**arguments))
        except Exception:
            answer = (False, traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
