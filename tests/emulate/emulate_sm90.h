// What Hopper has more (sm_90a), on a processor: barriers in shared memory that count arrivals and bytes,
// named barriers, copies of boxes by TMA and of rows in bulk, products of warpgroups (wgmma). Semantics are
// those of the PTX ISA 9.0, sections "mbarrier", "barrier", "Tensor copies", "Asynchronous warpgroup level
// matrix instructions".
//
// Copies and products are done by units beside the threads (emulate.h's `later`): what reads a stage before
// it has come, writes it while it is read, or uses sums before it has waited for them gets other bits, and
// does not go unseen. Found and thrown besides: products without a fence since the last wait, left operands
// that were not pinned before that fence, or changed behind it or while a product reads them, warpgroups
// whose threads multiply different things, products and bulk copies of what threads wrote without a fence,
// boxes and descriptors that are not aligned as they must be, tensor maps that the driver would refuse,
// barriers that the block has not made, that copies cannot see yet, with more arrivals than they wait for or
// more bytes than they count, named barriers that a block leaves half full.
#pragma once
#include "emulate.h"

namespace trireme::emulate {

// ---- mbarrier: the state is in its 64 bits ----

void init_barrier(uint64_t& barrier, int arrivals);
void show_barriers();  // those that this thread has made, to copies
void arrive(uint64_t& barrier);
void arrive_expecting(uint64_t& barrier, int bytes);
void expect(uint64_t& barrier, int bytes);
void wait_for(uint64_t& barrier, uint32_t parity);  // until the barrier has left the phase
bool has_left(uint64_t& barrier, uint32_t parity);  // waits a while (emulate.h)

// ---- named barriers of a block (bar.sync, bar.arrive) ----

void meet(int id, int threads);
void pass_by(int id, int threads);

// ---- copies ----

// Of [batch, rows, heads, columns], elements of 2 bytes; strides in bytes. Boxes of 64 columns and box_rows
// rows of one head. Made by tile_map.
struct TileMap {
  const std::byte* data = nullptr;
  int64_t columns = 0, heads = 0, rows = 0, batch = 0;
  int64_t head_stride = 0, row_stride = 0, batch_stride = 0;
  int box_rows = 0;
};
// cuTensorMapEncodeTiled for elements of 2 bytes, four dims, no interleave, 128-byte swizzle, every element
// of a box: refuses what that does (CUDA Driver API 13.0, "Tensor Map Object Management"). dims from the
// innermost on; strides in bytes of dims 1 to 3.
TileMap tile_map(const void* data, const uint64_t (&dims)[4], const uint64_t (&strides)[3],
                 const uint32_t (&box)[4]);
// A box, its rows 128 bytes apart, 128-byte swizzle; what is not there becomes 0. The barrier counts its
// bytes.
void copy_box(uint32_t to, const TileMap&, uint64_t& barrier, int column, int head, int row, int batch);
// A thread's bulk copies: floats from shared memory to memory, added or stored.
void bulk_out(float* to, uint32_t from, int bytes, bool add);
void end_bulk();                              // of a group
void wait_bulk(int pending, bool read_only);  // read_only: what they read may be written again

// ---- products ----

struct Product {
  int columns = 0;
  bool fresh = false, left_in_registers = false, left_turned = false, right_turned = false, f16 = false;
  uint64_t left = 0, right = 0;  // descriptors
  bool operator==(const Product&) const = default;
};
// The fragment is what it shall be; one that products read must have been pinned since it was last written,
// before begin_products.
void pin_left(const uint32_t* left);
void begin_products();
void end_products();
void wait_products(int pending);
// sums: columns / 2 floats of this thread; left: 4 registers of it, or null.
void multiply(const Product&, float* sums, const uint32_t* left);

}  // namespace trireme::emulate
