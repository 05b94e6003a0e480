"""Steps of pipelines beside what their schedules say in virtual time: stages that compute, stages that sleep, and the
simulator's own time."""

import json

from lines import Load, Section, percent, run

MANY = ["--stages=8", "--schedules", "gpipe", "1f1b", "zb-h1", "zb-h2", "v-half", "dualpipe-v"]
PADDED = [["--stages=4"], ["--stages=4", "--uneven", "--link=2"], MANY, [*MANY, "--uneven", "--link=2"]]



def measured(options, *arguments):
    """The program's lines, and the share of others meanwhile."""
    with Load() as load:
        text = run([options.pipeline, *arguments])
    return [json.loads(line) for line in text.splitlines()], load.others


def computed_line(x, others):
    return {"schedule": x["schedule"], "step ms": f"{x['step_ms']:.1f}", "predicted ms": f"{x['predicted_ms']:.1f}",
            "measured / predicted": f"{x['ratio']:.3f}", "least, most of steps": f"{x['least']:.3f}, {x['most']:.3f}",
            "waits ms": f"{x['waits_ms']:.1f}", "predicted waits ms": f"{x['predicted_waits_ms']:.1f}",
            "F, B or I, W ms by stage": "; ".join(", ".join(f"{t:.1f}" for t in stage if t) for stage in x["times_ms"]),
            "link ms": f"{x['link_ms']:.2f}", "peak MB": f"{x['peak_mb']:.1f}",
            "gain": percent(x["gain"]) if "gain" in x else "-",
            "gain predicted": percent(x["gain_predicted"]) if "gain" in x else "-",
            "by its times": percent(x["gain_by_its_times"]) if "gain" in x else "-", "others' CPU": percent(others)}


def padded_line(x, others):
    return {"ranks": x["ranks"], "stages' times": "differ" if x["uneven"] else "equal", "link ms": x["link_ms"], "schedule": x["schedule"],
            "step ms": f"{x['step_ms']:.1f}", "virtual ms": f"{x['virtual_ms']:.1f}",
            "measured / virtual": f"{x['ratio']:.3f}", "least, most of steps": f"{x['least']:.3f}, {x['most']:.3f}",
            "others' CPU": percent(others)}


def pipeline(options):
    name = options.pipeline.name
    rows, others = measured(options, "computed")
    note = ("Two stages of llama-6x384 (vocabulary 512) on one thread each, f32, 8 microbatches of 256 tokens, schedules in turn. Predicted: "
            "the replay of the schedule with the mean times of the step's own actions and messages, and behind it what loss, norm "
            "and update took. Waits: mean of ranks for messages. Gain: over the first schedule's step. Peak: of the fullest rank, booked.")
    sections = [Section("Pipelines: steps beside their schedules", f"{name} computed",
                        [computed_line(x, others) for x in rows], note)]
    lines = []
    for case in PADDED:
        rows, others = measured(options, "padded", *case)
        lines += [padded_line(x, others) for x in rows]
    note = "Every F, I and W of a rank's whole share lasts 20 ms (differ: 12 to 28), most of it asleep; 16 microbatches."
    sections.append(Section("Pipelines of more ranks than cores, in virtual time", f"{name} padded --stages 8", lines, note))
    rows, _ = measured(options, "replayed")
    lines = [{"schedule": x["schedule"], "ranks": x["ranks"], "microbatches": x["microbatches"], "pieces": x["pieces"],
              "seconds": f"{x['seconds']:.3f}", "most": f"{x['most']:.3f}"} for x in rows]
    sections.append(Section("The simulator's own time", f"{name} replayed", lines))
    return sections
