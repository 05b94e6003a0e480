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
void come(uint64_t& barrier, int arrivals, int bytes) {
  Phase p = phase_of(barrier);
  require(p.arrivals > 0 && p.pending >= arrivals, "a barrier got more arrivals than its phase waits for");
  p.pending = uint16_t(p.pending - arrivals), p.bytes_and_parity += 2 * bytes;
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

struct Block {
  uint64_t number = 0;
  std::array<Named, 16> named;
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
}
void arrive(uint64_t& barrier) {
  come(barrier, 1, 0);
}
void arrive_expecting(uint64_t& barrier, int bytes) {
  come(barrier, 0, bytes), come(barrier, 1, 0);
}
void wait_for(uint64_t& barrier, uint32_t parity) {
  wait_until([&] { return uint32_t(phase_of(barrier).bytes_and_parity & 1) != parity; });
}

void pass_by(int id, int threads) {
  require(id > 0 && id < 16 && threads % 32 == 0, "a named barrier is one of 1 to 15, of whole warps");
  Named& b = block().named[size_t(id)];
  if (++b.come == threads) b.come = 0, b.phase++;
}
void meet(int id, int threads) {
  Named& b = block().named[size_t(id)];
  const uint64_t phase = b.phase;
  pass_by(id, threads);
  wait_until([&] { return b.phase != phase; });
}

void copy_box(uint32_t to, const TileMap& map, uint64_t& barrier, int column, int head, int row, int batch) {
  require(to % 1024 == 0, "a box of 128-byte swizzle goes to a multiple of 1,024 bytes");
  require(map.box_rows > 0 && map.box_rows <= 256, "a box is of at most 256 rows");
  for (int64_t stride : {map.head_stride, map.row_stride, map.batch_stride})
    require(stride % 16 == 0, "a tensor map's strides are multiples of 16 bytes");
  require_aligned(map.data, 16);
  later([=, &barrier] {
    for (int r = 0; r < map.box_rows; r++)
      for (int c = 0; c < 64; c++) {
        uint16_t x = 0;
        if (column + c < map.columns && row + r < map.rows && row + r >= 0)
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

void begin_products() {
  own_thread().fenced = true;
}
void multiply(const Product& p, float* sums, const uint32_t* left) {
  Warpgroup& w = own_warpgroup();
  auto& own = own_thread();
  require(own.fenced, "a product without wgmma.fence since the last wait");
  require(p.columns % 8 == 0 && p.columns <= 256, "a product of 8 to 256 columns");
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
