"""Writes JSON lines of random documents for the measurements of docs/corpus.md: words drawn by Zipf's law from a made-up
vocabulary, in sentences, lines and paragraphs; a fraction are copies of earlier ones with a few words changed.
Usage: make_corpus.py MEGABYTES OUT.jsonl [SEED]"""

import json
import random
import sys


def main(megabytes, path, seed=1):
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    function_words = "the of and to in that is was he for it with as his on be at by had not are but from or have".split()
    words = function_words + ["".join(rng.choices(letters, range(26, 0, -1), k=rng.randint(2, 11))) for _ in range(50000)]
    weights, total = [], 0.0
    for rank in range(len(words)):
        total += 1 / (rank + 2.7)
        weights.append(total)
    stream = rng.choices(words, cum_weights=weights, k=2_000_000)  # documents are cut from it at random places
    written, number, earlier = 0, 0, []
    with open(path, "w", encoding="utf-8") as out:
        while written < megabytes * 1e6:
            if earlier and rng.random() < 0.1:
                text = list(rng.choice(earlier))
                for _ in range(rng.randint(0, 3)):
                    text[rng.randrange(len(text))] = rng.choice(words)
            else:
                text = []
                for _ in range(int(rng.lognormvariate(3.2, 0.8)) + 5):  # sentences
                    length, at = rng.randint(5, 25), rng.randrange(len(stream) - 30)
                    sentence = stream[at:at + length]
                    sentence[0] = sentence[0].capitalize()
                    sentence[-1] += rng.choice([". ", ". ", "? ", "! ", ".\n", ".\n", ".\n\n"])
                    text += sentence
                if len(earlier) < 2000:
                    earlier.append(text)
            line = json.dumps({"id": number, "url": f"https://example.org/{number}",
                               "text": " ".join(text).replace("\n ", "\n").replace("  ", " ").strip()}) + "\n"
            out.write(line)
            written += len(line)
            number += 1


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
