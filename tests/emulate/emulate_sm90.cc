#include "emulate_sm90.h"

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::emulate {
namespace {

// ---- barriers ----

struct Phase {
  uint16_t arrivals, pending;
  int32_t bytes_and_parity;  // 2 * bytes that are still to come + parity
};
Phase phase_of(const uint64_t& barrier) {
  return std::bit_cast<Phase>(barrier);
}
void put(uint64_t& barrier, Phase p) {
  if (p.pending == 0 && p.bytes_and_parity >> 1 == 0) p.pending = p.arrivals, p.bytes_and_parity ^= 1;
  barrier = std::bit_cast<uint64_t>(p);
}
constexpr int kMostBytes = (1 << 20) - 1;  // that a phase counts (PTX ISA, "Contents of the mbarrier object")
void come(uint64_t& barrier, int arrivals, int bytes) {
  Phase p = phase_of(barrier);
  require(p.arrivals > 0 && p.pending >= arrivals, "a barrier got more arrivals than its phase waits for");
  p.pending = uint16_t(p.pending - arrivals), p.bytes_and_parity += 2 * bytes;
  require(std::abs(p.bytes_and_parity >> 1) <= kMostBytes, "a barrier counts at most 2^20 - 1 bytes");
  put(barrier, p);
}

struct Named {
  int come = 0;
  uint64_t phase = 0;
};

// ---- products ----

constexpr int kGroupThreads = 128;

struct OfThread {
  float* sums = nullptr;
  const uint32_t* left = nullptr;
  std::array<uint32_t, 4> left_then{};
};
struct Group {
  std::vector<Product> products;
  std::vector<std::array<OfThread, kGroupThreads>> threads;  // of a product
  int committed = 0, retired = 0;
};
struct Sums {
  std::vector<float> value;
  size_t last_group = 0;
};
struct Warpgroup {
  std::deque<Group> groups;
  size_t done = 0;
  struct Thread {
    size_t open = 0, place = 0, retired = 0;  // groups; products of the open one
    bool fenced = false;
    std::map<float*, Sums> sums;  // those that products are under way to
    struct Pinned {
      std::array<uint32_t, 4> value{};
      bool fenced = false;
    };
    std::map<const uint32_t*, Pinned> pinned;
  };
  std::array<Thread, kGroupThreads> threads;
};

struct BulkGroup {
  int reads = 0, writes = 0;
};
struct BulkThread {
  std::shared_ptr<BulkGroup> open;
  std::deque<std::shared_ptr<BulkGroup>> ended;
};

// Who made a barrier of the block, and whether copies see it.
struct Made {
  unsigned thread = 0;
  bool shown = false;
};

struct Block {
  uint64_t number = 0;
  std::array<Named, 16> named;
  std::map<const uint64_t*, Made> barriers;
  std::map<unsigned, Warpgroup> warpgroups;
  std::map<unsigned, BulkThread> bulk;
};
Block& block() {
  static Block b;
  if (b.number != blocks_begun()) {
    b = Block();
    b.number = blocks_begun();
  }
  return b;
}

const Made& made(const uint64_t& barrier) {
  const auto& all = block().barriers;
  const auto found = all.find(&barrier);
  require(found != all.end(), "a barrier that the block has not made");
  return found->second;
}

uint32_t swizzled(uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// Matrix descriptor (PTX ISA, "Matrix descriptor format").
struct Descriptor {
  uint32_t address, leading, stride;
  explicit Descriptor(uint64_t d)
      : address(uint32_t(d & 0x3fff) << 4),
        leading(uint32_t(d >> 16 & 0x3fff) << 4),
        stride(uint32_t(d >> 32 & 0x3fff) << 4) {
    require(d >> 62 == 1 && (d >> 49 & 7) == 0, "a descriptor of another layout than 128-byte swizzle");
  }
  // Where element (i, k) lies, i the row of a left or the column of a right operand ("Canonical layouts").
  uint32_t at(int i, int k, bool turned) const {
    const uint32_t linear =
        turned ? address + uint32_t(i / 64) * leading + uint32_t(i % 64 * 2) + uint32_t(k / 8) * stride +
                     uint32_t(k % 8 * 128)
               : address + uint32_t(i / 8) * stride + uint32_t(i % 8 * 128) + uint32_t(k * 2);
    return swizzled(linear);
  }
};

float element(uint16_t bits, bool is_f16) {
  if (is_f16) {
    f16 x;
    x.bits = bits;
    return float(x);
  }
  bf16 x;
  x.bits = bits;
  return float(x);
}
float element_at(uint32_t address, bool is_f16) {
  uint16_t bits;
  std::memcpy(&bits, seen_by_copies(address, 2), 2);
  return element(bits, is_f16);
}

// D += A B of one instruction, m64nNk16 (figures "WGMMA .m64nNk16 register fragment layout").
void compute(const Product& p, const std::array<OfThread, kGroupThreads>& all, Warpgroup& w) {
  float a[64][16], b[16][256], d[64][256] = {};
  if (p.left_in_registers) {
    for (int thread = 0; thread < kGroupThreads; thread++)
      for (int r = 0; r < 4; r++)
        for (int half = 0; half < 2; half++) {
          const int lane = thread % 32, row = thread / 32 * 16 + lane / 4 + r % 2 * 8;
          a[row][lane % 4 * 2 + r / 2 * 8 + half] =
              element(uint16_t(all[size_t(thread)].left_then[size_t(r)] >> 16 * half), p.f16);
        }
  } else {
    const Descriptor left(p.left);
    for (int i = 0; i < 64; i++)
      for (int k = 0; k < 16; k++) a[i][k] = element_at(left.at(i, k, p.left_turned), p.f16);
  }
  const Descriptor right(p.right);
  for (int j = 0; j < p.columns; j++)
    for (int k = 0; k < 16; k++) b[k][j] = element_at(right.at(j, k, p.right_turned), p.f16);
  for (int i = 0; i < 64; i++)
    for (int k = 0; k < 16; k++)
      for (int j = 0; j < p.columns; j++) d[i][j] += a[i][k] * b[k][j];
  for (int thread = 0; thread < kGroupThreads; thread++) {
    auto& sums = w.threads[size_t(thread)].sums.at(all[size_t(thread)].sums).value;
    const int lane = thread % 32;
    for (int i = 0; i < p.columns / 2; i++) {
      const int row = thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      sums[size_t(i)] = (p.fresh ? 0.0f : sums[size_t(i)]) + d[row][column];
    }
  }
}

Warpgroup& own_warpgroup() {
  return block().warpgroups[threadIdx.x / kGroupThreads];
}
Warpgroup::Thread& own_thread() {
  return own_warpgroup().threads[threadIdx.x % kGroupThreads];
}

}  // namespace

void init_barrier(uint64_t& barrier, int arrivals) {
  require(arrivals > 0 && arrivals < 1 << 16, "a barrier waits for one arrival at least");
  barrier = std::bit_cast<uint64_t>(Phase{uint16_t(arrivals), uint16_t(arrivals), 0});
  block().barriers[&barrier] = {.thread = threadIdx.x};
}
void show_barriers() {
  for (auto& [barrier, of] : block().barriers) of.shown |= of.thread == threadIdx.x;
}
void arrive(uint64_t& barrier) {
  made(barrier);
  come(barrier, 1, 0);
}
void expect(uint64_t& barrier, int bytes) {
  require(bytes >= 0 && bytes <= kMostBytes, "a barrier counts at most 2^20 - 1 bytes");
  made(barrier);
  come(barrier, 0, bytes);
}
void arrive_expecting(uint64_t& barrier, int bytes) {
  expect(barrier, bytes);
  come(barrier, 1, 0);
}
void wait_for(uint64_t& barrier, uint32_t parity) {
  made(barrier);
  wait_until([&] { return uint32_t(phase_of(barrier).bytes_and_parity & 1) != parity; });
}
bool has_left(uint64_t& barrier, uint32_t parity) {
  made(barrier);
  return wait_a_while([&] { return uint32_t(phase_of(barrier).bytes_and_parity & 1) != parity; });
}

void pass_by(int id, int threads) {
  require(id > 0 && id < 16 && threads % 32 == 0, "a named barrier is one of 1 to 15, of whole warps");
  Named& b = block().named[size_t(id)];
  if (b.come == 0 && b.phase == 0)
    at_end([&b] { require(b.come == 0, "a block ended while a named barrier waited for more threads"); });
  if (++b.come == threads) b.come = 0, b.phase++;
}
void meet(int id, int threads) {
  Named& b = block().named[size_t(id)];
  const uint64_t phase = b.phase;
  pass_by(id, threads);
  wait_until([&] { return b.phase != phase; });
}

TileMap tile_map(const void* data, const uint64_t (&dims)[4], const uint64_t (&strides)[3],
                 const uint32_t (&box)[4]) {
  constexpr uint64_t kMostDim = uint64_t(1) << 32, kStrideEnd = uint64_t(1) << 40;
  require(reinterpret_cast<uintptr_t>(data) % 16 == 0 && data, "a tensor map's data are 16-byte aligned");
  for (uint64_t dim : dims)
    require(dim > 0 && dim <= kMostDim, "a tensor map's dims are of 1 to 2^32 elements");
  for (uint64_t stride : strides)
    require(stride % 16 == 0 && stride < kStrideEnd,
            "a tensor map's strides are multiples of 16 bytes below 2^40");
  for (uint32_t size : box) require(size > 0 && size <= 256, "a box has 1 to 256 elements in each dim");
  require(box[0] * 2 <= 128, "a box of 128-byte swizzle has rows of at most 128 bytes");
  require(box[0] == 64 && box[1] == 1 && box[3] == 1, "the emulation knows boxes of 64 columns of one head");
  return {.data = static_cast<const std::byte*>(data),
          .columns = int64_t(dims[0]),
          .heads = int64_t(dims[1]),
          .rows = int64_t(dims[2]),
          .batch = int64_t(dims[3]),
          .head_stride = int64_t(strides[0]),
          .row_stride = int64_t(strides[1]),
          .batch_stride = int64_t(strides[2]),
          .box_rows = int(box[2])};
}
void copy_box(uint32_t to, const TileMap& map, uint64_t& barrier, int column, int head, int row, int batch) {
  require(to % 1024 == 0, "a box of 128-byte swizzle goes to a multiple of 1,024 bytes");
  require(made(barrier).shown, "a copy counts at a barrier that was made without show_barriers");
  const bool there = head >= 0 && head < map.heads && batch >= 0 && batch < map.batch && column >= 0;
  later([=, &barrier] {
    for (int r = 0; r < map.box_rows; r++)
      for (int c = 0; c < 64; c++) {
        uint16_t x = 0;
        if (column + c < map.columns && row + r < map.rows && row + r >= 0 && there)
          std::memcpy(&x,
                      map.data + batch * map.batch_stride + (row + r) * map.row_stride +
                          head * map.head_stride + (column + c) * 2,
                      2);
        std::memcpy(shared_at(swizzled(to + uint32_t(r * 128 + c * 2)), 2), &x, 2);
      }
    come(barrier, 0, -map.box_rows * 128);
  });
}

void bulk_out(float* to, uint32_t from, int bytes, bool add) {
  require_aligned(to, 16);
  require(from % 16 == 0 && bytes % 16 == 0, "bulk copies are of 16 bytes and so aligned");
  auto& open = block().bulk[threadIdx.x].open;
  if (!open) open = std::make_shared<BulkGroup>();
  open->reads++, open->writes++;
  later([=, group = open] {
    auto values = std::make_shared<std::vector<float>>(size_t(bytes) / 4);
    std::memcpy(values->data(), seen_by_copies(from, bytes), size_t(bytes));
    group->reads--;
    later([=] {
      for (size_t i = 0; i < values->size(); i++) to[i] = (add ? to[i] : 0.0f) + (*values)[i];
      group->writes--;
    });
  });
}
void end_bulk() {
  auto& own = block().bulk[threadIdx.x];
  own.ended.push_back(own.open ? std::move(own.open) : std::make_shared<BulkGroup>());
  own.open = nullptr;
}
void wait_bulk(int pending, bool read_only) {
  auto& own = block().bulk[threadIdx.x];
  wait_until([&] {
    for (size_t i = 0; i + size_t(pending) < own.ended.size(); i++)
      if ((read_only ? own.ended[i]->reads : own.ended[i]->writes) > 0) return false;
    return true;
  });
}

void pin_left(const uint32_t* left) {
  auto& pinned = own_thread().pinned[left];
  std::copy_n(left, 4, pinned.value.begin());
  pinned.fenced = false;
}
void begin_products() {
  auto& own = own_thread();
  own.fenced = true;
  for (auto& [left, pinned] : own.pinned) pinned.fenced = true;
}
void multiply(const Product& p, float* sums, const uint32_t* left) {
  Warpgroup& w = own_warpgroup();
  auto& own = own_thread();
  require(own.fenced, "a product without wgmma.fence since the last wait");
  require(p.columns % 8 == 0 && p.columns <= 256, "a product of 8 to 256 columns");
  if (left) {
    const auto pinned = own.pinned.find(left);
    require(pinned != own.pinned.end() && pinned->second.fenced,
            "a left operand in registers was not pinned before wgmma.fence");
    require(std::equal(pinned->second.value.begin(), pinned->second.value.end(), left),
            "a left operand in registers was written behind wgmma.fence");
  }
  while (w.groups.size() <= own.open) w.groups.emplace_back();
  Group& g = w.groups[own.open];
  if (own.place == g.products.size()) g.products.push_back(p), g.threads.emplace_back();
  require(g.products[own.place] == p, "threads of a warpgroup multiply different operands");
  OfThread& mine = g.threads[own.place++][threadIdx.x % kGroupThreads];
  mine.sums = sums, mine.left = left;
  if (left) std::copy_n(left, 4, mine.left_then.begin());
  auto [at, is_new] = own.sums.try_emplace(sums);
  const size_t n = size_t(p.columns) / 2;
  if (is_new) {
    at->second.value.assign(sums, sums + n);
    std::fill_n(sums, n, std::numeric_limits<float>::quiet_NaN());
  }
  require(at->second.value.size() == n, "products of different widths add to the same sums");
  at->second.last_group = own.open;
}
void end_products() {
  Warpgroup& w = own_warpgroup();
  auto& own = own_thread();
  while (w.groups.size() <= own.open) w.groups.emplace_back();
  Group& g = w.groups[own.open++];
  require(g.committed == 0 || own.place == g.products.size(),
          "threads of a warpgroup issue different numbers of products");
  own.place = 0;
  if (++g.committed < kGroupThreads) return;
  later([&w] {  // groups are done in order, whichever of these comes first
    Group& next = w.groups[w.done];
    for (size_t i = 0; i < next.products.size(); i++) compute(next.products[i], next.threads[i], w);
    w.done++;
  });
}
void wait_products(int pending) {
  Warpgroup& w = own_warpgroup();
  auto& own = own_thread();
  const size_t upto = own.open > size_t(pending) ? own.open - size_t(pending) : 0;
  wait_until([&] { return w.done >= upto; });
  own.fenced = false;
  for (auto at = own.sums.begin(); at != own.sums.end();)
    if (at->second.last_group < upto) {
      std::copy(at->second.value.begin(), at->second.value.end(), at->first);
      at = own.sums.erase(at);
    } else {
      ++at;
    }
  for (; own.retired < upto; own.retired++) {
    Group& g = w.groups[own.retired];
    for (const auto& of_product : g.threads) {
      const OfThread& mine = of_product[threadIdx.x % kGroupThreads];
      require(!mine.left || std::equal(mine.left_then.begin(), mine.left_then.end(), mine.left),
              "a left operand in registers changed before its product had ended");
    }
    if (++g.retired == kGroupThreads) g.products.clear(), g.threads.clear();
  }
}

}  // namespace trireme::emulate
