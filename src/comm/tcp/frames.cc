#include "comm/tcp/frames.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace trireme::tcp {
namespace {

template <class T>
std::vector<std::byte> plain(const T& value) {
  std::vector<std::byte> b(sizeof(T));
  std::memcpy(b.data(), &value, sizeof(T));
  return b;
}

// bytes [at, at + sizeof(T)) of a body, which are there.
template <class T>
T plain_at(const Frame& f, size_t at, std::string_view what) {
  if (f.body.size() < at || f.body.size() - at < sizeof(T))
    bad_request("rendezvous: a {} of {} bytes, and it has {} at least", what, f.body.size(), at + sizeof(T));
  T value;
  std::memcpy(&value, f.body.data() + at, sizeof(T));
  return value;
}

// What came as text, for a terminal: no control bytes, at most 4096 of it.
std::string clean_text(const std::vector<std::byte>& body, size_t at) {
  std::string text(reinterpret_cast<const char*>(body.data()) + at, std::min<size_t>(body.size() - at, 4096));
  for (char& c : text)
    if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

struct NewsHead {
  int32_t rank, fault;
  uint8_t certain, dead, spare[6];
};

int64_t wanted_bytes(const CallHead& h, const Call& c) {
  const int64_t size = size_of(h.dtype);
  if (h.kind == Collective::broadcast && h.place != h.root) return 0;
  if (h.kind != Collective::all_to_all) return h.numel * size;
  int64_t rows = 0;
  for (int64_t n : c.send_rows) rows += n;
  return rows * h.cols * size;
}

}  // namespace

void FrameReader::put(std::span<const std::byte> bytes) {
  if (at_ > 0 && at_ == waiting_.size()) waiting_.clear(), at_ = 0;
  if (at_ > size_t(1) << 20) {  // frames that were taken
    waiting_.erase(waiting_.begin(), waiting_.begin() + std::ptrdiff_t(at_));
    at_ = 0;
  }
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::next() {
  const size_t there = waiting_.size() - at_;
  if (there < sizeof(FrameHead)) return {};
  Frame f;
  std::memcpy(&f.head, waiting_.data() + at_, sizeof(FrameHead));
  const FrameHead& h = f.head;
  if (h.magic != FrameHead::kMagic) bad_request("rendezvous: bytes that are none of trireme's");
  if (h.version != FrameHead().version)
    bad_request("rendezvous: a message of version {}, and this trireme speaks version {}", h.version,
                FrameHead().version);
  if (h.kind >= FrameKind::count) bad_request("rendezvous: a message of unknown kind {}", int(h.kind));
  if (h.bytes < 0 || h.bytes > most_)
    bad_request("rendezvous: a message of {} bytes, and at most {} are taken", h.bytes, most_);
  if (there - sizeof(FrameHead) < size_t(h.bytes)) return {};
  const auto begin = waiting_.begin() + std::ptrdiff_t(at_ + sizeof(FrameHead));
  f.body.assign(begin, begin + std::ptrdiff_t(h.bytes));
  at_ += sizeof(FrameHead) + size_t(h.bytes);
  return f;
}

std::vector<std::byte> body_of(const Hello& h) {
  return plain(h);
}
Hello parse_hello(const Frame& f) {
  if (f.head.kind != FrameKind::hello)
    bad_request("rendezvous: a connection that does not begin with a greeting");
  Hello h = plain_at<Hello>(f, 0, "greeting");
  h.machine.back() = '\0';
  if (h.world < 1 || h.world > 1'000'000)
    bad_request("rendezvous: a greeting of a world of {} ranks; right are 1 to 1,000,000", h.world);
  if (h.rank < 0 || h.rank >= h.world)
    bad_request("rendezvous: a greeting of rank {} of {}; right are 0 to {}", h.rank, h.world, h.world - 1);
  return h;
}

std::vector<std::byte> body_of(const Challenge& c) {
  return plain(c);
}
Challenge parse_challenge(const Frame& f) {
  return plain_at<Challenge>(f, 0, "challenge");
}
std::vector<std::byte> body_of(const Digest& proof) {
  return plain(proof);
}
Digest parse_proof(const Frame& f) {
  return plain_at<Digest>(f, 0, "proof");
}
Digest proof_of(Side side, std::string_view secret, const Hello& hello, const Digest& hub_nonce) {
  std::vector<std::byte> message = plain(hello);
  message.insert(message.end(), hub_nonce.begin(), hub_nonce.end());
  message.push_back(std::byte(side));
  return hmac_sha256(secret, message);
}

std::vector<std::byte> body_of(const Welcome& w) {
  return plain(w);
}
Welcome parse_welcome(const Frame& f) {
  const Welcome w = plain_at<Welcome>(f, 0, "welcome");
  if (w.world < 1 || w.local_ranks < 1 || w.local_ranks > w.world || w.local_rank < 0 ||
      w.local_rank >= w.world)
    bad_request("rendezvous: a welcome of rank {} of {} here, of {}", w.local_rank, w.local_ranks, w.world);
  return w;
}

std::vector<std::byte> body_of(const News& n) {
  std::vector<std::byte> b = plain(NewsHead{n.rank, n.fault, uint8_t(n.certain), uint8_t(n.dead), {}});
  const size_t head = b.size(), text = std::min<size_t>(n.why.size(), 4096);
  b.resize(head + text);
  std::copy_n(reinterpret_cast<const std::byte*>(n.why.data()), text, b.data() + head);
  return b;
}
News parse_news(const Frame& f, int world) {
  const auto h = plain_at<NewsHead>(f, 0, "message of a failure");
  if (h.rank < 0 || h.rank >= world || h.fault < 0 || h.fault >= kFaults)
    bad_request("rendezvous: news of rank {} of {}, of fault {}", h.rank, world, h.fault);
  return {.rank = h.rank,
          .fault = h.fault,
          .certain = h.certain != 0,
          .dead = h.dead != 0,
          .why = clean_text(f.body, sizeof h)};
}

std::vector<std::byte> body_of(const CallHead& h, std::span<const int64_t> send_rows,
                               std::span<const int64_t> recv_rows, std::span<const std::byte> data) {
  std::vector<std::byte> b = plain(h);
  b.reserve(b.size() + 8 * (send_rows.size() + recv_rows.size()) + data.size());
  for (std::span<const int64_t> rows : {send_rows, recv_rows}) {
    const auto bytes = std::as_bytes(rows);
    b.insert(b.end(), bytes.begin(), bytes.end());
  }
  b.insert(b.end(), data.begin(), data.end());
  return b;
}

Call parse_call(const Frame& f, int world) {
  Call c;
  c.head = plain_at<CallHead>(f, 0, "part in a collective");
  const CallHead& h = c.head;
  if (h.kind >= Collective::count || h.kind == Collective::p2p || h.dtype > DType::u8 || h.op > Reduce::max)
    bad_request("rendezvous: a collective of kind {}, type {}, reduction {}", int(h.kind), int(h.dtype),
                int(h.op));
  if (h.size < 1 || h.size > world || h.place < 0 || h.place >= h.size || h.root < 0 || h.root >= h.size)
    bad_request("rendezvous: a collective of place {} in {} ranks, root {}, in a world of {}", h.place,
                h.size, h.root, world);
  const bool adds = h.kind == Collective::all_reduce || h.kind == Collective::reduce ||
                    h.kind == Collective::reduce_scatter;
  if (adds && (h.dtype == DType::u8 || h.dtype == DType::u16))
    bad_request("rendezvous: {} of {}, which is not added", name_of(h.kind), name_of(h.dtype));
  c.head.group.back() = '\0';
  for (char& letter : c.head.group)
    if (letter != '\0' && (uint8_t(letter) < 0x20 || uint8_t(letter) > 0x7e)) letter = '?';
  constexpr int64_t kMost = kMostBody;
  if (h.numel < 0 || h.numel > kMost || h.cols < 0 || h.cols > kMost || h.recv_cols < 0 ||
      h.recv_cols > kMost)
    bad_request("rendezvous: a collective of {} elements, rows of {} and {}", h.numel, h.cols, h.recv_cols);
  size_t at = sizeof(CallHead);
  if (h.kind == Collective::all_to_all) {
    const size_t table = sizeof(int64_t) * size_t(h.size);
    if (f.body.size() - at < 2 * table) bad_request("rendezvous: an all_to_all without its counts of rows");
    for (auto* rows : {&c.send_rows, &c.recv_rows}) {
      rows->resize(size_t(h.size));
      std::memcpy(rows->data(), f.body.data() + at, table);
      at += table;
      for (int64_t n : *rows)
        if (n < 0 || (h.cols > 0 && n > kMost / h.cols) || n > kMost)
          bad_request("rendezvous: an all_to_all of {} rows of {}", n, h.cols);
    }
  }
  c.data = std::span(f.body).subspan(at);
  if (int64_t(c.data.size()) != wanted_bytes(h, c))
    bad_request("rendezvous: {} with {} bytes, and it has {}", name_of(h.kind), c.data.size(),
                wanted_bytes(h, c));
  return c;
}

std::string text_of(const Frame& f) {
  return clean_text(f.body, 0);
}

}  // namespace trireme::tcp
