#include "comm/mpi/mpi_world.h"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/no_signals.h"
#include "comm/group.h"
#include "comm/mpi/beats.h"
#include "comm/mpi/factory.h"
#include "comm/mpi/mpi_comm.h"

namespace trireme {
namespace mpi {
namespace {

// A communicator of these ranks of `all`. Freed when MPI is finalised: it is collective to free one, and
// ranks may leave groups in any order.
MPI_Comm part_of(MPI_Comm all, std::span<const int> ranks) {
  MPI_Group everybody = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_group(all, &everybody), "MPI_Comm_group");
  check(MPI_Group_incl(everybody, int(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check(MPI_Comm_create_group(all, some, 0, &comm), "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&some), MPI_Group_free(&everybody);
  return comm;
}

class MpiFactory final : public CommFactory {
 public:
  MpiFactory(World& world, const CommOptions& options, Device* device)
      : world_(world), options_(options), device_(device) {
    trireme::check(options, "algorithm");
    std::vector<int> all(size_t(world.size()));
    std::iota(all.begin(), all.end(), 0);
    control_ = communicator(all, "control", nullptr);
  }
  int rank() const override { return world_.rank(); }
  int world() const override { return world_.size(); }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    return communicator(ranks, name, device_);
  }
  void fail(std::string_view why) override { world_.fail(why, true, 0); }
  Communicator& control() override { return *control_; }

 private:
  std::unique_ptr<Communicator> communicator(std::span<const int> ranks, std::string_view name,
                                             Device* device) {
    const int place = place_in_group(ranks, rank(), world());
    world_.look();
    if (world_.failure.is_set()) world_.failure.raise();
    return std::make_unique<MpiCommunicator>(world_, options_, part_of(world_.ranks(), ranks), name, ranks,
                                             place, device);
  }

  World& world_;
  const CommOptions options_;
  Device* device_;
  std::unique_ptr<Communicator> control_;
};

// Notes of one rank to another, on a communicator of their own; what was not asked for yet waits here.
class Notes {
 public:
  explicit Notes(MPI_Comm ranks) : ranks_(ranks) { check(MPI_Comm_rank(ranks, &rank_), "MPI_Comm_rank"); }
  void post(int to, uint64_t key, std::string_view bytes) {
    require(bytes.size() <= ProcessWorld::kMostNote, "a note is short");
    std::lock_guard lock(mutex_);
    if (to == rank_) return keep(to, key, std::string(bytes));
    std::erase_if(leaving_, [](const auto& l) { return l->messages.done(); });
    Leaving& l = *leaving_.emplace_back(std::make_unique<Leaving>());
    l.note.key = key, l.note.bytes = int64_t(bytes.size());
    bytes.copy(l.note.text.data(), bytes.size());
    l.messages.send(ranks_, reinterpret_cast<const std::byte*>(&l.note), sizeof(Note), to, kTag,
                    sizeof(Note) + 1);
  }
  std::optional<std::string> fetch(int from, uint64_t key) {
    std::lock_guard lock(mutex_);
    std::erase_if(leaving_, [](const auto& l) { return l->messages.done(); });
    receive();
    auto it = kept_.find({from, key});
    if (it == kept_.end()) return {};
    std::string text = std::move(it->second.front());
    it->second.pop_front();
    if (it->second.empty()) kept_.erase(it);
    return text;
  }
  // MPI still reads what has not left; nobody waits for it any more.
  void give_up() {
    for (auto& l : leaving_) l.release();
    leaving_.clear();
  }

 private:
  static constexpr int kTag = 0;
  struct Note {
    uint64_t key = 0;
    int64_t bytes = 0;
    std::array<char, ProcessWorld::kMostNote> text{};
  };
  struct Leaving {
    Note note;
    Messages messages;
  };
  void keep(int from, uint64_t key, std::string text) { kept_[{from, key}].push_back(std::move(text)); }
  void receive() {
    for (int there = 1; there;) {
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kTag, ranks_, &there, &status), "MPI_Iprobe");
      if (!there) return;
      Note n;
      check(MPI_Recv(&n, int(sizeof n), MPI_BYTE, status.MPI_SOURCE, kTag, ranks_, MPI_STATUS_IGNORE),
            "MPI_Recv");
      keep(status.MPI_SOURCE, n.key, std::string(n.text.data(), size_t(n.bytes)));
    }
  }

  MPI_Comm ranks_;
  int rank_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Leaving>> leaving_;
  std::map<std::pair<int, uint64_t>, std::deque<std::string>> kept_;
};

class WorldOfProcesses final : public ProcessWorld {
 public:
  WorldOfProcesses() {
    int size = 1;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    world_.emplace(process_.first(size), process_.local_ranks(), Limits());
    notes_.emplace(process_.first(size));
  }
  ~WorldOfProcesses() override { notes_->give_up(); }
  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  int local_ranks() const override { return process_.local_ranks(); }
  int local_rank() const override { return process_.local_rank(); }
  std::unique_ptr<CommFactory> factory(Device* device, const CommOptions& options) override {
    return make_factory(*world_, options, device);
  }

  std::unique_ptr<BeatBoard> board() override { return make_board(process_.first(size())); }

  Error end_failed(const Error& e) override {
    process_.leave_alone();
    world_->fail(e.what(), true, int(e.fault));
    const int first = world_->failure.rank();
    if (first != rank()) {  // who told us why also says with which code it leaves, unless it died meanwhile
      const bool there = world_->lowest_leaving(2, size()) >= 0;
      return Error(there ? "" : e.what(), Fault(world_->fault_of(first)));
    }
    const int lower = rank() > 0 ? world_->lowest_leaving(0.3, rank()) : -1;
    if (lower >= 0) return Error("", Fault(world_->fault_of(lower)));
    return Error(size() == 1 ? e.what() : fmt::format("rank {}: {}", rank(), e.what()), e.fault);
  }

  const Failure& news() override {
    world_->look();
    return world_->failure;
  }
  void fail(std::string_view why, bool certain) override { world_->fail(why, certain, 0); }
  void post(int to, uint64_t key, std::string_view bytes) override { notes_->post(to, key, bytes); }
  std::optional<std::string> fetch(int from, uint64_t key) override { return notes_->fetch(from, key); }

 private:
  Process process_;
  std::optional<World> world_;
  std::optional<Notes> notes_;
};

}  // namespace

Process::Process() {
  int given = MPI_THREAD_SINGLE;
  {
    NoSignals blocked;  // they are the calling thread's
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given), "MPI_Init_thread");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (given < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    bad_request(
        "train.comm = \"mpi\": this MPI serves one thread at a time, and streams need MPI_THREAD_MULTIPLE; "
        "Debian's OpenMPI has it");
  }
  MPI_Comm here = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
        "MPI_Comm_split_type");
  // mpirun may have bound each process to cores of its own.
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  int size = 1;
  check(MPI_Comm_size(here, &size), "MPI_Comm_size");
  std::vector<cpu_set_t> all(static_cast<size_t>(size));
  check(MPI_Allgather(&mine, int(sizeof mine), MPI_BYTE, all.data(), int(sizeof mine), MPI_BYTE, here),
        "MPI_Allgather");
  local_ranks_ =
      int(std::count_if(all.begin(), all.end(), [&](cpu_set_t& c) { return CPU_EQUAL(&c, &mine); }));
  check(MPI_Comm_rank(here, &local_rank_), "MPI_Comm_rank");
  MPI_Comm_free(&here);
}

Process::~Process() {
  if (!alone_) MPI_Finalize();
}

MPI_Comm Process::first(int n) const {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return part_of(MPI_COMM_WORLD, ranks);
}

std::unique_ptr<CommFactory> make_factory(World& world, const CommOptions& options, Device* device) {
  return std::make_unique<MpiFactory>(world, options, device);
}

}  // namespace mpi

std::unique_ptr<ProcessWorld> join_mpi_world() {
  return std::make_unique<mpi::WorldOfProcesses>();
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return {};
  const std::string all(text, size_t(std::max(0, length)));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace trireme
