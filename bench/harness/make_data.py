#!/usr/bin/env python3
"""Writes the documents of the tasks in this folder: bench/harness/make_data.py [FOLDER]. Deterministic."""
import json
import pathlib
import random
import sys

CAPITALS = """France Paris|Germany Berlin|Italy Rome|Spain Madrid|Portugal Lisbon|Austria Vienna|Hungary Budapest|Poland Warsaw
Greece Athens|Norway Oslo|Sweden Stockholm|Denmark Copenhagen|Finland Helsinki|Ireland Dublin|Japan Tokyo|China Beijing
India Delhi|Russia Moscow|Egypt Cairo|Kenya Nairobi|Cuba Havana|Canada Ottawa|Peru Lima|Chile Santiago|Turkey Ankara
Iran Tehran|Iraq Baghdad|Thailand Bangkok|Vietnam Hanoi|Australia Canberra|Belgium Brussels|Bulgaria Sofia|Croatia Zagreb
Romania Bucharest|Serbia Belgrade|Ukraine Kyiv|Nigeria Abuja|Ghana Accra|Morocco Rabat|Tunisia Tunis|Uruguay Montevideo
Ecuador Quito|Colombia Bogota|Venezuela Caracas|Lebanon Beirut|Syria Damascus|Jordan Amman|Qatar Doha|Nepal Kathmandu"""
ASKED = ["What is the capital of {}?", "Which city is the capital of {}?", "{} is governed from which city?"]
PAIRS = [("The trophy did not fit into the suitcase because the _", "trophy", "suitcase", "was too big."),
         ("The water put out the fire because the _", "water", "fire", "was cold and wet."),
         ("The dog chased the cat until the _", "cat", "dog", "climbed a tree."),
         ("The teacher praised the student because the _", "student", "teacher", "had done all the homework."),
         ("The hammer broke the glass because the _", "glass", "hammer", "was so fragile."),
         ("The man lifted the child because the _", "child", "man", "could not reach the shelf.")]
NAMES = ["Tom", "Ann", "Sam", "Eva", "Ben", "Ida", "Max", "Joy", "Leo", "Mia"]
WORDS = [("The opposite of hot", ["cold", "cool"]), ("The color of the sky on a clear day", ["blue"]),
         ("The opposite of up", ["down"]), ("The animal that barks", ["dog", "a dog"]), ("The day after Monday", ["Tuesday"]),
         ("The number after three", ["four", "4"]), ("The season after winter", ["spring"]), ("The color of grass", ["green"]),
         ("The animal that says meow", ["cat", "a cat"]), ("The opposite of black", ["white"]), ("The month after June", ["July"]),
         ("The frozen form of water", ["ice"]), ("The star that the Earth goes around", ["the sun", "sun"]),
         ("The opposite of day", ["night"]), ("The large gray animal with a trunk", ["elephant", "an elephant"])]


def write(path, docs):
    path.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in docs), encoding="utf-8")


def capitals(rnd):
    pairs = [p.split() for line in CAPITALS.split("\n") for p in line.split("|")]
    docs = []
    for asked in ASKED:
        for country, city in pairs:
            texts = [city] + rnd.sample([c for _, c in pairs if c != city], 3)
            rnd.shuffle(texts)
            docs.append({"question": asked.format(country), "choices": {"text": texts, "label": ["A", "B", "C", "D"]},
                         "answerKey": "ABCD"[texts.index(city)]})
    rnd.shuffle(docs)
    return docs


def sums(rnd, count):
    docs = []
    for _ in range(count):
        a, b, who = rnd.randint(1, 12), rnd.randint(1, 12), rnd.choice(NAMES)
        docs.append({"question": f"{who} has {a} apples and gets {b} more. How many apples does {who} have?",
                     "answer": f"{a} and {b} make {a + b}.\n#### {a + b}"})
    return docs


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "data"
    folder.mkdir(parents=True, exist_ok=True)
    rnd = random.Random(7)
    docs = capitals(rnd)
    write(folder / "capitals_train.jsonl", docs[:30])
    write(folder / "capitals_test.jsonl", docs[30:])
    write(folder / "sums_train.jsonl", sums(rnd, 40))
    write(folder / "sums_test.jsonl", sums(rnd, 100))
    write(folder / "pronouns.jsonl",
          [{"start": f"{n} saw it. " + s, "option1": a if i % 2 else b, "option2": b if i % 2 else a, "ending": e,
            "label": 0 if i % 2 else 1} for i, (n, (s, a, b, e)) in enumerate((n, p) for p in PAIRS for n in NAMES)])
    write(folder / "words.jsonl", [{"question": f"{q} is what?", "hint": "one word" if i % 3 == 0 else "", "aliases": a}
                                   for i, (q, a) in enumerate(WORDS * 3)])
    docs_folder = here.parent.parent / "docs"
    write(folder / "prose.jsonl", [{"text": (docs_folder / name).read_text(encoding="utf-8")[:12000]}
                                   for name in ("generate.md", "text.md", "optim.md")])


if __name__ == "__main__":
    main()
