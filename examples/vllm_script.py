"""A script for vLLM with one import changed: `from vllm import LLM, SamplingParams`.  vllm_script.py MODEL"""

import sys

from octet import LLM, SamplingParams


def main() -> None:
    prompts = ["Hello, my name is", "The future of AI is"]
    llm = LLM(model=sys.argv[1], max_num_seqs=16)
    for output in llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)):
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
