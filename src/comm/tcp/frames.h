// What processes say to each other over TCP: frames of a head of 40 bytes and a body, and what bodies hold.
//
// Bytes from the network are believed nothing: every length and number is looked at before it is used, a body
// grows only as its bytes come, and what is wrong is an Error in one line. Heads are sent as they lie in
// memory; the magic number is another one on a machine of the other byte order.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hmac.h"
#include "comm/communicator.h"

namespace trireme::tcp {

enum class FrameKind : uint8_t {
  hello,    // the first of a connection: which rank of which job
  welcome,  // all are here
  refusal,  // text: why this connection, or the whole meeting, ends
  call,     // a rank's part in a collective of host memory
  result,   // what it gets of it
  verdict,  // text, in the place of a result: the calls do not fit together
  mail,     // from a rank to another
  news,     // a rank has failed
  beat,
  bye,        // the rank leaves in good order
  challenge,  // the answer to a hello: what the rank must prove, and the hub's own proof
  proof,      // that the rank knows the secret of the job
  count
};

struct FrameHead {
  static constexpr uint32_t kMagic = 0x4d524954;  // "TIRM"
  uint32_t magic = kMagic;
  uint16_t version = 2;
  FrameKind kind = FrameKind::bye;
  uint8_t spare = 0;
  int32_t from = 0, to = 0;  // ranks of the world
  uint64_t key = 0;          // call, result: of the group; mail: as the two agreed
  int64_t number = 0;        // call, result: index among the group's collectives; refusal: fault
  int64_t bytes = 0;         // of the body
};
static_assert(sizeof(FrameHead) == 40);

struct Frame {
  FrameHead head;
  std::vector<std::byte> body;
};

// Frames out of bytes as they come.
class FrameReader {
 public:
  // most: bytes of a body that are taken.
  explicit FrameReader(int64_t most) : most_(most) {}
  void allow(int64_t most) { most_ = most; }
  void put(std::span<const std::byte>);
  std::optional<Frame> next();  // throws what is wrong with the bytes; then the connection is of no more use

 private:
  int64_t most_;
  std::vector<std::byte> waiting_;
  size_t at_ = 0;
};

inline constexpr int64_t kMostHello = 4096;
inline constexpr int64_t kMostBody = int64_t(1) << 31;

// ---- bodies ----

// The meeting, if the job has a secret: a rank sends a hello with random bytes. The hub answers with a
// challenge: other random bytes, and a proof that it knows the secret. The rank sends the same proof. Proofs
// are HMACs over both sides' random bytes and the hello, so none can be used twice. The secret is never sent.
struct Hello {
  int32_t rank = 0, world = 1;
  uint64_t job = 0;                 // tells jobs apart that use one port
  Digest nonce{};                   // random
  std::array<char, 112> machine{};  // host name and processor cores: who says the same shares them
};
std::vector<std::byte> body_of(const Hello&);
Hello parse_hello(const Frame&);

struct Challenge {
  Digest nonce{};  // random
  Digest proof{};  // the hub's
};
std::vector<std::byte> body_of(const Challenge&);
Challenge parse_challenge(const Frame&);
std::vector<std::byte> body_of(const Digest& proof);
Digest parse_proof(const Frame&);
inline constexpr std::string_view kOtherSecret =
    "rendezvous: the ranks have different secrets: set TRIREME_SECRET to the same text on all of them";
// The proof of one side of a meeting.
enum class Side : uint8_t { hub, rank };
Digest proof_of(Side, std::string_view secret, const Hello&, const Digest& hub_nonce);

struct Welcome {
  int32_t world = 1, local_rank = 0, local_ranks = 1;
};
std::vector<std::byte> body_of(const Welcome&);
Welcome parse_welcome(const Frame&);

struct News {
  int32_t rank = 0, fault = 0;  // fault: 0 = not known yet
  bool certain = false;
  bool dead = false;  // its connection ended without a word
  std::string why;
};
std::vector<std::byte> body_of(const News&);
News parse_news(const Frame&, int world);

// A rank's part in a collective.
struct CallHead {
  int64_t numel = 0;                // of data; broadcast: of the root's, and others send none
  int64_t cols = 0, recv_cols = 0;  // all_to_all: elements of a row
  int32_t size = 1, place = 0, root = 0;
  Collective kind = Collective::barrier;
  DType dtype = DType::u8;
  Reduce op = Reduce::sum;
  uint8_t spare[9] = {};
  std::array<char, 32> group{};  // its name, for people
};
static_assert(sizeof(CallHead) == 80);  // of 16s: data behind it are aligned
struct Call {
  CallHead head;
  std::vector<int64_t> send_rows, recv_rows;  // all_to_all
  std::span<const std::byte> data;            // in the frame's body
};
std::vector<std::byte> body_of(const CallHead&, std::span<const int64_t> send_rows,
                               std::span<const int64_t> recv_rows, std::span<const std::byte> data);
Call parse_call(const Frame&, int world);  // refers to the frame

std::string text_of(const Frame&);  // refusal, verdict: one line of at most 4096 bytes

}  // namespace trireme::tcp
