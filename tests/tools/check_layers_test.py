"""check_layers must pass the good edges and fail on each kind of bad one."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_layers  # noqa: E402

GOOD = {
    "base/error.h": "#include <string>\n",
    "mesh/mesh.h": '#include "base/error.h"\n',
    "trace/ledger.h": "",
    "cost/memory.h": '#include "trace/ledger.h"\n',
    "device/device.h": "",
    "device/cpu/matmul.cc": '  # include "device/device.h"\n#include "cost/memory.h"\n#include "mesh/mesh.h"\n'
                            '#include "hwy/highway.h"\n',
    "model/block.cc": '#include "device/device.h"\n// #include "cli/main.h" is only a comment\n',
    "optim/adamw.h": "",
    "sim/events.cc": '#include "cost/memory.h"\n',
    "cli/main.cc": '#include "model/block.h"\n#include "sim/events.h"\n',
    "model/block.h": "",
    "sim/events.h": "",
}


class CheckLayers(unittest.TestCase):
    def check(self, extra):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (GOOD | extra).items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                status = check_layers.main(["check_layers.py", folder])
            return status, said.getvalue()

    def assert_error(self, extra, *words):
        status, said = self.check(extra)
        self.assertEqual(status, 1, said)
        self.assertEqual(said.count("error: "), 1, said)
        for word in words:
            self.assertIn(word, said)

    def test_good_edges_pass(self):
        self.assertEqual(self.check({}), (0, "check_layers: 12 files, 0 errors, 0 warnings\n"))

    def test_upward_edge(self):
        self.assert_error({"mesh/bad.h": '\n#include "spec/run_spec.h"\n', "spec/run_spec.h": ""},
                          'mesh/bad.h:2: "spec/run_spec.h"', "sees rows 0-0", "row 2")

    def test_siblings(self):
        self.assert_error({"model/bad.cc": '#include "optim/adamw.h"\n'}, "model and optim are siblings in row 6")

    def test_upward_edge_from_a_subfolder(self):
        self.assert_error({"device/cpu/bad.cc": '#include "model/block.h"\n'}, "device/cpu/bad.cc:1")

    def test_published_is_for_cli(self):
        self.assert_error({"search/bad.cc": '#include "published/score.h"\n', "published/score.h": ""},
                          "search/bad.cc:1: \"published/score.h\": published is for cli alone")
        good = {"cli/good.cc": '#include "published/score.h"\n', "published/score.h": ""}
        self.assertEqual(self.check(good)[0], 0)

    def test_sim_sees_no_tensor_data(self):
        self.assert_error({"sim/bad.cc": '#include "device/device.h"\n'}, "sim (row 7) sees rows 0-3")

    def test_unknown_folder(self):
        self.assert_error({"utils/all.h": ""}, "folder utils is not in the layer table")
        self.assert_error({"utils/notes.txt": ""}, "utils: this folder is not in the layer table")

    def test_unknown_room_included(self):
        self.assert_error({"mesh/bad.h": '#include "utils/all.h"\n'}, "names no room")

    def test_path_not_from_src(self):
        self.assert_error({"mesh/bad.h": '#include "mesh.h"\n'}, 'right is a path from src, as "mesh/file.h"')

    def test_file_outside_of_rooms(self):
        self.assert_error({"main.cc": ""}, "main.cc: a file outside of every room")

    def test_reach(self):
        runtime = {name: "" for name in check_layers.NEVER_REACHES} | {"runtime/step_watch.h": "", "runtime/a.h": ""}
        self.assertEqual(self.check(runtime)[0], 0)
        self.assertEqual(self.check(runtime | {"runtime/evaluator.h": '#include "runtime/step_watch.h"\n'})[0], 0)
        self.assert_error(runtime | {"runtime/evaluator.h": '#include "runtime/a.h"\n',
                                     "runtime/a.h": '#include "optim/adamw.h"\n'},
                          "runtime/evaluator.h: reaches optim/adamw.h through runtime/a.h")
        self.assert_error(runtime | {"runtime/posted_step.h": '#include "runtime/stage_passes.h"\n'},
                          "runtime/posted_step.h: reaches runtime/stage_passes.h")
        gone = dict(runtime)
        del gone["runtime/evaluator.cc"]
        self.assert_error(gone, "runtime/evaluator.cc: NEVER_REACHES has a file that does not exist")

    def test_files_of_the_meta_only_build(self):
        with tempfile.TemporaryDirectory() as folder:
            cli = pathlib.Path(folder) / "cli"
            (cli / "meta_only").mkdir(parents=True)
            for name, text in {"main.cc": '#include "cli/plan.h"\n#include "cli/train.h"\n#include "cli/cli.h"\n',
                               "plan.cc": "", "train.cc": "", "cli.h": "",
                               "meta_only/meta_only.cc": '#include "cli/train.h"\n'}.items():
                (cli / name).write_text(text, encoding="utf-8")

            def said(listed):
                return check_layers.breaches_of_meta_only(cli.parent, f"set(meta_only_cli {listed})")

            self.assertEqual(said("main plan"), [])
            self.assertEqual(said("main"), ["cli/main.cc: includes cli/plan.h; add plan to cmake/meta_only.cmake"])
            self.assertEqual(said("main plan gone"),
                             ["cli/gone.cc: cmake/meta_only.cmake lists a file that does not exist"])

    def test_missing_file(self):
        self.assert_error({"mesh/bad.h": '#include "base/gone.h"\n'}, '"base/gone.h" does not exist')

    def test_line_budget_warns(self):
        status, said = self.check({"mesh/long.h": "\n" * 601})
        self.assertEqual(status, 0)
        self.assertIn("warning: mesh/long.h: 601 lines", said)
        self.assertEqual(self.check({"mesh/right.h": "\n" * 600})[1].count("warning:"), 0)
        self.assertEqual(self.check({"mesh/table.inc": "\n" * 900})[1].count("warning:"), 0)

    def test_two_types_of_one_name(self):
        text = "namespace trireme {\nstruct Timeline {\n  int x;\n};\n}\n"
        self.assert_error({"mesh/one.h": text, "schedule/two.h": text.replace("struct", "class")},
                          "schedule/two.h: trireme::Timeline is another type in mesh/one.h")
        other = text.replace("trireme {", "trireme::other {")
        self.assertEqual(self.check({"mesh/one.h": text, "schedule/two.h": other})[0], 0)

    def test_empty_tree_fails(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(check_layers.main(["check_layers.py", folder]), 1)


if __name__ == "__main__":
    unittest.main()
