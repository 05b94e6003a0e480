#include "checkpoint/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "sanitized.h"
#include "splits.h"
#include "support.h"

namespace trireme {
namespace {

// What the checkpoint of a step must hold: three tensors in five parts, each a function of (step, version).
struct Content {
  std::vector<Whole> tensors;
  Manifest manifest;
  Stored stored;

  explicit Content(int64_t step, uint64_t version = 0, int64_t rows = 9) {
    std::mt19937_64 rng(uint64_t(step) * 1000 + version);
    tensors = {Whole("a/master", {rows, 40}, rng), Whole("a/exp_avg", {rows, 40}, rng),
               Whole("b/master", {}, rng)};
    for (const Whole& w : tensors) {
      const int64_t n = w.global.numel();
      stored.add(w, {whole(w.global).box, {0, n / 2}});
      if (n > 1) stored.add(w, {whole(w.global).box, {n / 2, n}});
    }
    stored.tensors.back().range = {0, 1}, stored.memory.back()->assign(1, tensors[2].values[0]);
    stored.tensors.back().host_data = Tensor(stored.memory.back()->data(), {1}, DType::f32);
    manifest.step = step, manifest.samples = step * 32, manifest.tokens = int64_t(version);
    manifest.saved_at = "2025-01-31T12:00:00Z";
    manifest.state = {{"loss", 1.0 / double(step + 1)}};
  }
  fs::path save_to(const fs::path& root, const SaveOptions& o = {}) const {
    return save(root, manifest, stored.tensors, o);
  }
};

bool holds(const Checkpoint& c, const Content& want) {
  Manifest m = c.manifest();
  m.files.clear();
  if (m != want.manifest || c.names().size() != want.tensors.size()) return false;
  for (const Whole& w : want.tensors) {
    std::vector<float> got(w.values.size());
    Part p = whole(w.global);
    c.read({w.name, w.global, p.box, p.range, Tensor(got.data(), {p.range.size()}, DType::f32)});
    if (got != w.values) return false;
  }
  return true;
}

std::vector<std::string> phases_of_a_save() {
  TempFolder tmp;
  std::vector<std::string> phases;
  Content(1).save_to(tmp.path(), {.keep = 2, .phase = [&](std::string_view p) { phases.emplace_back(p); }});
  return phases;
}

using Names = std::vector<std::string>;
using Steps = std::vector<int64_t>;

TEST(Store, PhasesAndNames) {
  EXPECT_EQ(phases_of_a_save(),
            (Names{"begin", "tensor:0", "tensor:1", "tensor:2", "tensor:3", "tensor:4", "data_flushed",
                   "manifest_written", "folder_flushed", "renamed", "verified", "pruned"}));
  EXPECT_EQ(step_folder_name(200), "step-00000200");
  EXPECT_EQ(step_of_folder_name("step-00000200"), 200);
  EXPECT_EQ(step_of_folder_name("step-123456789012"), 123456789012);
  for (std::string bad : {"step-200", "step-00000200.part", "step-", "step--0000001", "step-0000020x",
                          "xstep-00000200", "step-000000200", "step-99999999999999999999"})
    EXPECT_EQ(step_of_folder_name(bad), std::nullopt) << bad;
}

TEST(Store, SavesAndFindsTheNewest) {
  TempFolder tmp(fs::temp_directory_path());  // on a disk, fsync and all
  fs::path root = tmp / "run/checkpoints";
  Found none = find_newest(root);
  EXPECT_FALSE(none.newest);
  EXPECT_TRUE(none.damaged.empty());
  for (int64_t step : {5, 20, 3}) Content(step).save_to(root);
  EXPECT_EQ(names_in(root), (Names{"step-00000003", "step-00000005", "step-00000020"}));
  Found found = find_newest(root);
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->folder(), root / "step-00000020");
  EXPECT_TRUE(holds(*found.newest, Content(20)));
  EXPECT_FALSE(holds(*found.newest, Content(20, 1)));
  // What is no checkpoint is no candidate.
  fs::create_directory(root / "step-00000030.part");
  fs::create_directory(root / "step-30");
  write_raw(root / "notes.txt", "x");
  EXPECT_EQ(find_newest(root).newest->manifest().step, 20);
  EXPECT_EQ(remove_leftovers(root), (Names{"step-00000030.part"}));
  EXPECT_EQ(names_in(root),
            (Names{"notes.txt", "step-00000003", "step-00000005", "step-00000020", "step-30"}));
  EXPECT_EQ(remove_leftovers(tmp / "absent"), Names{});
}

TEST(Store, ADamagedCheckpointIsPassedOverWithItsReason) {
  TempFolder tmp;
  for (int64_t step : {1, 2, 3, 4, 5, 6}) Content(step).save_to(tmp.path());
  fs::path file3 = tmp / "step-00000003/rank-00000.safetensors",
           file4 = tmp / "step-00000004/rank-00000.safetensors";
  std::string s = read_text(file3);
  s[s.size() - 3] ^= 4;
  write_raw(file3, s);
  fs::resize_file(file4, fs::file_size(file4) - 1);
  fs::remove(tmp / "step-00000005/manifest.json");
  fs::rename(tmp / "step-00000006", tmp / "step-00000007");
  fs::create_directory(tmp / "step-00000006");
  Found found = find_newest(tmp.path());
  ASSERT_TRUE(found.newest);
  EXPECT_TRUE(holds(*found.newest, Content(2)));
  ASSERT_EQ(found.damaged.size(), 5u);
  const char* reasons[] = {"step-00000007: manifest.json says step 6",
                           "step-00000006/manifest.json: No such file",
                           "step-00000005/manifest.json: No such file", "bytes long, but manifest.json says",
                           "the file is damaged"};
  for (size_t i = 0; i < 5; i++)
    EXPECT_NE(found.damaged[i].find(reasons[i]), std::string::npos) << found.damaged[i];
  // Looking at sizes only, a flipped bit goes unseen; that is what hashes are for.
  EXPECT_EQ(find_newest(tmp.path(), Verify::sizes).newest->manifest().step, 3);
}

// An older checkpoint must not take the place of one on a disk that fails. Address 0 of a process cannot be
// read: EIO.
TEST(Store, ACheckpointThatCannotBeReadIsNotPassedOver) {
  TempFolder tmp;
  for (int64_t step : {1, 2}) Content(step).save_to(tmp.path());
  fs::remove(tmp / "step-00000002/manifest.json");
  fs::create_symlink("/proc/self/mem", tmp / "step-00000002/manifest.json");
  try {
    find_newest(tmp.path());
    ADD_FAILURE() << "passed over";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::environment) << e.what();
    EXPECT_NE(std::string(e.what()).find("step-00000002/manifest.json"), std::string::npos) << e.what();
  }
}

TEST(Store, PrunesOnlyBehindCompleteSuccessors) {
  auto damage = [](const TempFolder& tmp, int64_t step) {
    fs::path file = tmp / (step_folder_name(step) + "/rank-00000.safetensors");
    std::string s = read_text(file);
    s.back() ^= 1;
    write_raw(file, s);
  };
  {
    TempFolder tmp;
    for (int64_t step : {1, 2, 3, 4}) Content(step).save_to(tmp.path());
    EXPECT_EQ(prune(tmp.path(), 2), (Steps{2, 1}));
    EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000003", "step-00000004"}));
    EXPECT_EQ(prune(tmp.path(), 2), Steps{});
  }
  {  // The newest is damaged: it does not count, and it stays to be looked at.
    TempFolder tmp;
    for (int64_t step : {1, 2, 3, 4}) Content(step).save_to(tmp.path());
    damage(tmp, 4), damage(tmp, 2);
    EXPECT_EQ(prune(tmp.path(), 2), Steps{});
    EXPECT_EQ(prune(tmp.path(), 1), (Steps{2, 1}));
    EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000003", "step-00000004"}));
    // A save below the damaged step keeps itself.
    damage(tmp, 3);
    Content(2).save_to(tmp.path(), {.keep = 1});
    EXPECT_EQ(find_newest(tmp.path()).newest->manifest().step, 2);
    EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000002", "step-00000003", "step-00000004"}));
  }
  {  // All damaged: nothing goes.
    TempFolder tmp;
    for (int64_t step : {1, 2}) Content(step).save_to(tmp.path()), damage(tmp, step);
    EXPECT_EQ(prune(tmp.path(), 1), Steps{});
    EXPECT_EQ(find_newest(tmp.path()).damaged.size(), 2u);
  }
  TempFolder tmp;
  for (int64_t step : {1, 2, 3, 4, 5}) Content(step).save_to(tmp.path(), {.keep = 2});
  EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000004", "step-00000005"}));
}

TEST(Store, SavingAStepAgainReplacesIt) {
  TempFolder tmp;
  Content(7, 0).save_to(tmp.path());
  Content(7, 1).save_to(tmp.path(), {.keep = 1});
  EXPECT_TRUE(holds(*find_newest(tmp.path()).newest, Content(7, 1)));
  EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000007"}));
}

// A write that does not read back as it was is withdrawn: the run fails, and everything is as it was before.
TEST(Store, AWriteThatReadsBackDifferentlyIsWithdrawn) {
  for (bool replacing : {false, true}) {
    TempFolder tmp;
    Content(1).save_to(tmp.path());
    if (replacing) Content(2, 0).save_to(tmp.path());
    auto flip_a_bit = [&](std::string_view phase) {
      if (phase != "renamed") return;
      std::string s = read_text(tmp / "step-00000002/rank-00000.safetensors");
      s.back() ^= 1;
      write_raw(tmp / "step-00000002/rank-00000.safetensors", s);
    };
    try {
      Content(2, 1).save_to(tmp.path(), {.keep = 1, .phase = flip_a_bit});
      ADD_FAILURE() << "nothing noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::run);
      EXPECT_NE(std::string(e.what()).find("reads back differently"), std::string::npos) << e.what();
    }
    Found found = find_newest(tmp.path());
    EXPECT_TRUE(holds(*found.newest, replacing ? Content(2, 0) : Content(1)));
    EXPECT_TRUE(found.damaged.empty());
    EXPECT_EQ(names_in(tmp.path()).size(), replacing ? 2u : 1u);
  }
}

TEST(Store, AFailureInAnyPhaseLeavesNoPart) {
  for (const std::string& phase : phases_of_a_save()) {
    TempFolder tmp;
    Content(1).save_to(tmp.path());
    auto fail = [&](std::string_view p) {
      if (p == phase) run_failed("on purpose");
    };
    EXPECT_THROW(Content(2).save_to(tmp.path(), {.keep = 2, .phase = fail}), Error);
    for (const std::string& name : names_in(tmp.path()))
      EXPECT_TRUE(step_of_folder_name(name)) << phase << ": " << name;
    EXPECT_TRUE(holds(Checkpoint::open(tmp / "step-00000001"), Content(1))) << phase;
  }
}

// Runs f in a child process, which must not return; gives its wait status.
int in_child(const std::function<void()>& f) {
  pid_t child = ::fork();
  if (child == 0) {
    try {
      f();
    } catch (const Error& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Dies at the given phase of one save.
PhaseHook die_at(const std::string& phase) {
  return [phase](std::string_view p) {
    if (p == phase) ::kill(::getpid(), SIGKILL);
  };
}

TEST(StoreKill, EveryPhaseOfEverySaveLeavesTheNewestCompleteOne) {
  const std::vector<std::string> phases = phases_of_a_save();
  const size_t renamed = size_t(std::find(phases.begin(), phases.end(), "renamed") - phases.begin());
  int kills = 0;
  for (int64_t dies_in : {1, 2, 4}) {
    for (size_t p = 0; p < phases.size(); p++) {
      SCOPED_TRACE(std::to_string(dies_in) + " " + phases[p]);
      TempFolder tmp;
      int status = in_child([&] {
        for (int64_t step = 1; step <= dies_in; step++)
          Content(step).save_to(tmp.path(),
                                {.keep = 2, .phase = step == dies_in ? die_at(phases[p]) : PhaseHook()});
      });
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      kills++;

      const int64_t newest = p >= renamed ? dies_in : dies_in - 1;
      Found found = find_newest(tmp.path());
      EXPECT_TRUE(found.damaged.empty());
      EXPECT_EQ(found.newest.has_value(), newest > 0);
      if (found.newest) {
        EXPECT_TRUE(holds(*found.newest, Content(newest)));
      }
      // keep = 2: the one before is there too, until its second successor has been verified.
      if (newest > 1) {
        EXPECT_TRUE(holds(Checkpoint::open(tmp / step_folder_name(newest - 1)), Content(newest - 1)));
      }

      // The run goes on, and ends as if it had never been killed.
      remove_leftovers(tmp.path());
      for (int64_t step = newest + 1; step <= 5; step++) Content(step).save_to(tmp.path(), {.keep = 2});
      EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000004", "step-00000005"}));
      EXPECT_TRUE(holds(*find_newest(tmp.path()).newest, Content(5)));
    }
  }
  EXPECT_EQ(kills, int(3 * phases.size()));
}

TEST(StoreKill, ReplacingAStepIsAtomicToo) {
  const std::vector<std::string> phases = phases_of_a_save();
  bool after_rename = false;
  for (const std::string& phase : phases) {
    after_rename |= phase == "renamed";
    TempFolder tmp;
    Content(3, 0).save_to(tmp.path());
    int status = in_child([&] { Content(3, 1).save_to(tmp.path(), {.phase = die_at(phase)}); });
    ASSERT_TRUE(WIFSIGNALED(status)) << phase;
    Found found = find_newest(tmp.path());
    ASSERT_TRUE(found.newest) << phase;
    EXPECT_TRUE(holds(*found.newest, Content(3, after_rename))) << phase;
    remove_leftovers(tmp.path());
    EXPECT_EQ(names_in(tmp.path()), (Names{"step-00000003"})) << phase;
  }
}

// Runs f in a child that is killed when it is about to make its n-th system call (from 0); false if it made
// fewer and ended. None where tracing is not allowed.
std::optional<bool> killed_at_system_call(int n, const std::function<void()>& f) {
  pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    f();
    ::_exit(0);
  }
  int status = 0;
  for (int stops = -1;; stops++) {  // the first is the SIGSTOP; then each call stops on its way in and out
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      if (WEXITSTATUS(status) == 77) return std::nullopt;
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return false;
    }
    if (!WIFSTOPPED(status)) {
      ADD_FAILURE() << "the child ended with status " << status;
      return false;
    }
    if (stops == 2 * n) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return true;
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  }
}

// Not only between phases: before every system call of a save and of the pruning behind it, one complete
// checkpoint is the newest, first the one before, then the new one.
TEST(StoreKill, BeforeEverySystemCall) {
  for (bool replacing : {false, true}) {
    const Content before(replacing ? 2 : 1, 0), after(2, 1);
    bool published = false;
    int kills = 0;
    for (;; kills += test::one_of(1, 7)) {
      TempFolder tmp;
      before.save_to(tmp.path());
      auto killed = killed_at_system_call(kills, [&] { after.save_to(tmp.path(), {.keep = 1}); });
      if (!killed) GTEST_SKIP() << "tracing a child process is not allowed here";
      Found found = find_newest(tmp.path());
      ASSERT_TRUE(found.newest) << kills;
      EXPECT_TRUE(found.damaged.empty()) << kills;
      if (holds(*found.newest, after)) {
        published = true;
      } else {
        EXPECT_FALSE(published) << kills;
        EXPECT_TRUE(holds(*found.newest, before)) << kills;
      }
      remove_leftovers(tmp.path());
      for (const std::string& name : names_in(tmp.path())) {
        EXPECT_TRUE(step_of_folder_name(name)) << name;
        EXPECT_NO_THROW(Checkpoint::open(tmp / name))
            << kills;  // one that is pruned is never seen half there
      }
      if (!*killed) break;
    }
    EXPECT_TRUE(published);
    EXPECT_GT(kills, 40);  // about 80 on Linux
  }
}

// A full disk, at every place where it can fill up: one line, the checkpoints before untouched, no part left.
void expect_survives(const fs::path& root,
                     const std::function<bool(const std::function<void()>&)>& without_space) {
  Content before(1);
  before.save_to(root);
  expect_refused([&] { without_space([&] { Content(2, 0, 2000).save_to(root, {.keep = 1}); }); },
                 {root.string(), "step-00000002"});
  EXPECT_EQ(names_in(root), (Names{"step-00000001"}));
  EXPECT_TRUE(holds(*find_newest(root).newest, before));
}

TEST(StoreFull, AFileSizeLimit) {
  TempFolder tmp;
  auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  for (rlim_t limit : {0u, 1u, 100u, 1000u, 5000u, 100000u}) {
    TempFolder inside(tmp.path());
    expect_survives(inside.path(), [&](const std::function<void()>& f) {
      struct Restore {
        rlimit old;
        ~Restore() { ::setrlimit(RLIMIT_FSIZE, &old); }
      } restore{old};
      rlimit now{limit, old.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &now);
      f();
      return true;
    });
  }
  ::signal(SIGXFSZ, old_handler);
}

TEST(StoreFull, ASmallDisk) {
  TempFolder tmp;
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  if (::mount("tmpfs", tmp.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs: " << std::strerror(errno);
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount(path.c_str()); }
  } unmount{tmp.path()};
  Content before(1), next(2, 0, 200);
  fs::path root = tmp / "checkpoints";
  before.save_to(root);
  int refused = 0, saved = 0;
  // Leave ever more pages of 4 KiB free, until the save fits.
  for (int64_t pages = 0; saved == 0 && pages < 60; pages++) {
    int64_t free = int64_t(fs::space(tmp.path()).available);
    write_raw(tmp / "filler", std::string(size_t(std::max<int64_t>(free - pages * 4096, 0)), 'x'));
    try {
      next.save_to(root, {.keep = 1});
      saved++;
    } catch (const Error& e) {
      refused++;
      std::string what = e.what();
      EXPECT_EQ(e.fault, Fault::environment) << what;
      EXPECT_NE(what.find("No space left on device; free some space"), std::string::npos) << what;
      EXPECT_EQ(names_in(root), (Names{"step-00000001"}));
      EXPECT_TRUE(holds(*find_newest(root).newest, before));
    }
    fs::remove(tmp / "filler");
  }
  EXPECT_EQ(saved, 1);
  EXPECT_GT(refused, 15);
  EXPECT_TRUE(holds(*find_newest(root).newest, next));
  EXPECT_EQ(names_in(root), (Names{"step-00000002"}));
}

TEST(StoreFull, NoFolderCanBeMade) {
  TempFolder tmp;
  write_raw(tmp / "run", "a file where a folder should be");
  expect_refused([&] { Content(1).save_to(tmp / "run"); }, {(tmp / "run").string(), "folder"});
  expect_refused([&] { Content(1).save_to(tmp / "run/checkpoints"); }, {(tmp / "run/checkpoints").string()});
  expect_refused([&] { find_newest(tmp / "run"); }, {"cannot list", (tmp / "run").string()});
  EXPECT_EQ(read_text(tmp / "run"), "a file where a folder should be");
  expect_refused([&] { Content(1).save_to("/proc/checkpoints"); }, {"/proc/checkpoints"});
  if (::geteuid() == 0) return;  // root writes where it may not
  fs::create_directory(tmp / "locked");
  fs::permissions(tmp / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused([&] { Content(1).save_to(tmp / "locked"); }, {(tmp / "locked").string(), "may write to"});
}

}  // namespace
}  // namespace trireme
