#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/untrusted.h"
#include "support.h"

namespace trireme {
namespace {

// A file of this JSON and so many bytes of data.
std::string file_of(const std::string& json, size_t data_bytes) {
  uint64_t n = json.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + json + std::string(data_bytes, 'x');
}

void parse(const std::string& file) {
  parse_safetensors(bytes_of(file), "some.safetensors");
}

template <class T>
std::vector<T> values(const SafetensorsFile& f, std::string_view name) {
  const SafetensorsEntry* e = f.find(name);
  if (!e) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  std::vector<T> out(f.bytes(*e).size() / sizeof(T));
  std::memcpy(out.data(), f.bytes(*e).data(), out.size() * sizeof(T));
  return out;
}

TEST(Safetensors, ReadsWhatTheReferenceLibraryWrote) {
  SafetensorsFile f(kUnitGoldens / "types.safetensors");
  EXPECT_EQ(f.header().entries.size(), 10u);
  EXPECT_EQ(f.header().metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(values<double>(f, "w.f64"), (std::vector<double>{1.0 / 3, -2.5e300}));
  EXPECT_EQ(values<float>(f, "w.f32"), (std::vector<float>{0, 1 / 7.f, 2 / 7.f, 3 / 7.f, 4 / 7.f, 5 / 7.f}));
  EXPECT_EQ(f.find("w.f32")->shape, (Shape{3, 2}));
  EXPECT_EQ(values<uint16_t>(f, "w.f16"), (std::vector<uint16_t>{0x2e66, 0xfbff, 0x0001, 0x7c00, 0}));
  EXPECT_EQ(values<uint16_t>(f, "w.bf16"), (std::vector<uint16_t>{0x3dcd}));
  EXPECT_EQ(values<int64_t>(f, "w.i64"), (std::vector<int64_t>{-(1ll << 40), 5, 7, 1ll << 62}));
  EXPECT_EQ(values<int32_t>(f, "w.i32"), (std::vector<int32_t>{-123456789}));
  EXPECT_EQ(f.find("w.i32")->shape, Shape{});
  EXPECT_EQ(values<uint16_t>(f, "w.u16"), (std::vector<uint16_t>{0, 1, 65535}));
  EXPECT_EQ(values<uint8_t>(f, "w.u8"), (std::vector<uint8_t>{0, 40, 80, 120, 160, 200, 240}));
  EXPECT_EQ(f.find("a.empty")->shape, (Shape{0, 4}));
  EXPECT_EQ(values<float>(f, "gr\u00f6\u00dfe \"q\"\n"), (std::vector<float>{1.5f}));
  EXPECT_EQ(f.find("w"), nullptr);
}

// The list in the message is the list of types that are read, bytes of a tensor included.
TEST(Safetensors, EveryTypeThatAMessageListsIsRead) {
  auto file_with = [](const std::string& type, size_t bytes) {
    return file_of("{\"w\":{\"dtype\":\"" + type + "\",\"shape\":[8],\"data_offsets\":[0," +
                       std::to_string(bytes) + "]}}",
                   bytes);
  };
  std::string message;
  try {
    parse(file_with("F99", 8));
  } catch (const Error& e) {
    message = e.what();
  }
  const size_t list = message.find("right is ");
  ASSERT_NE(list, std::string::npos) << message;
  std::string names = message.substr(list + 9);
  if (const size_t last = names.find(" or "); last != names.npos) names.replace(last, 4, ", ");
  int read = 0;
  for (size_t at = 0; at < names.size(); read++) {
    const size_t end = std::min(names.find(", ", at), names.size());
    const std::string type = names.substr(at, end - at);
    at = end + 2;
    const bool known = loads_or_refused([&] { parse(file_with(type, 8)); }) ||
                       loads_or_refused([&] { parse(file_with(type, 4)); }) ||
                       loads_or_refused([&] { parse(file_with(type, 6)); }) ||
                       loads_or_refused([&] { parse(file_with(type, 16)); }) ||
                       loads_or_refused([&] { parse(file_with(type, 32)); }) ||
                       loads_or_refused([&] { parse(file_with(type, 64)); });
    EXPECT_TRUE(known) << type;
  }
  EXPECT_EQ(read, 20);
  // F4 has four bits per element: an odd number of elements ends within a byte.
  expect_refused([] { parse(file_of(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2)); },
                 {"'w'", "[3] of F4", "multiple of 8"});
}

TEST(Safetensors, TypesThatTriremeHasNotCanBeSkipped) {
  SafetensorsFile f(kUnitGoldens / "foreign.safetensors");
  EXPECT_EQ(f.find("mask")->dtype, std::nullopt);
  EXPECT_EQ(f.find("mask")->stored_type, "BOOL");
  EXPECT_EQ(f.find("f8")->dtype, std::nullopt);
  EXPECT_EQ(values<uint16_t>(f, "x"), (std::vector<uint16_t>{0x3f80, 0x4000}));
}

TEST(Safetensors, WritesTheVeryBytesOfTheReferenceLibrary) {
  TempFolder tmp;
  SafetensorsFile golden(kUnitGoldens / "types.safetensors");
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& e : golden.header().entries) items.push_back({e.name, *e.dtype, e.shape});
  std::reverse(items.begin(), items.end());
  SafetensorsWriter w(tmp / "types.safetensors", items, {{"format", "pt"}});
  for (const SafetensorsItem& i : w.items()) {
    auto b = golden.bytes(*golden.find(i.name));
    w.write(b.data(), b.size() / 2);  // in two pieces
    w.write(b.data() + b.size() / 2, b.size() - b.size() / 2);
  }
  FileDigest digest = w.commit();
  std::string written = read_text(tmp / "types.safetensors");
  EXPECT_EQ(written, read_text(kUnitGoldens / "types.safetensors"));
  EXPECT_EQ(digest, (FileDigest{int64_t(written.size()), hash64(written.data(), written.size())}));
  EXPECT_EQ(digest_file(tmp / "types.safetensors"), digest);
}

TEST(Safetensors, RandomFilesComeBack) {
  TempFolder tmp;
  std::mt19937_64 rng(11);
  for (int round = 0; round < 50; round++) {
    std::map<std::string, std::string> data;
    std::vector<SafetensorsItem> items;
    for (size_t i = 0, n = rng() % 20; i < n; i++) {
      Shape s;
      s.rank = int(rng() % 5);
      for (int d = 0; d < s.rank; d++) s.dim[size_t(d)] = int64_t(rng() % 6);
      SafetensorsItem item{"t" + std::to_string(rng() % 1000), DType(rng() % 8), s};
      std::string bytes(size_t(s.numel() * size_of(item.dtype)), '\0');
      for (char& c : bytes) c = char(rng());
      if (data.emplace(item.name, bytes).second) items.push_back(item);
    }
    Metadata meta;
    for (size_t i = 0, n = rng() % 4; i < n; i++)
      meta["k" + std::to_string(i)] = "\"\\\u00e9 " + std::to_string(rng());
    SafetensorsWriter w(tmp / "x", items, meta);
    for (const SafetensorsItem& i : w.items()) w.write(data[i.name].data(), data[i.name].size());
    w.commit();
    SafetensorsFile f(tmp / "x");
    EXPECT_EQ(f.header().metadata, meta);
    EXPECT_EQ(f.header().data_begin % 8, 0);
    ASSERT_EQ(f.header().entries.size(), items.size());
    for (const SafetensorsItem& i : items) {
      const SafetensorsEntry* e = f.find(i.name);
      ASSERT_NE(e, nullptr);
      EXPECT_EQ(e->dtype, i.dtype);
      EXPECT_EQ(e->shape, i.shape);
      EXPECT_EQ((f.header().data_begin + e->begin) % size_of(i.dtype), 0);
      auto b = f.bytes(*e);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.data()), b.size()), data[i.name]);
    }
  }
}

TEST(Safetensors, AnUnfinishedFileLeavesNoTrace) {
  TempFolder tmp;
  {
    SafetensorsWriter w(tmp / "x", {{"a", DType::f32, {2}}});
    float half = 1;
    w.write(&half, 4);
    EXPECT_THROW(w.commit(), Error);
    EXPECT_THROW(w.write("123456", 6), Error);
  }
  EXPECT_TRUE(fs::is_empty(tmp.path()));
  EXPECT_THROW(safetensors_header(std::vector<SafetensorsItem>{{"a"}, {"a"}}, {}), Error);
}

TEST(Safetensors, EveryLieIsOneClearLine) {
  const std::string ok = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_NO_THROW(parse(file_of(ok, 8)));
  EXPECT_NO_THROW(parse(file_of(ok + "   ", 8)));
  EXPECT_NO_THROW(parse(file_of("{}", 0)));
  auto entry = [](std::string body) { return file_of("{\"w\":{" + body + "}}", 8); };
  struct Lie {
    std::string file;
    std::vector<std::string> parts;
  };
  uint64_t huge = uint64_t(1) << 63, over = 100'000'001;
  std::string head(8, '\0'), head2(8, '\0');
  std::memcpy(head.data(), &huge, 8), std::memcpy(head2.data(), &over, 8);
  const std::vector<Lie> lies = {
      {"", {"0 bytes long", "8 bytes"}},
      {"1234567", {"7 bytes long"}},
      {head + "{}", {"header length 9223372036854775808", "at most 100000000"}},
      {head2 + "{}", {"header length 100000001"}},
      {"version https://git-lfs.github.com/spec/v1\n", {"is a pointer of Git LFS, without the content"}},
      {"PK\x03\x04" + std::string(40, 'x'), {"is a zip archive"}},
      {file_of(ok, 8).substr(0, 30), {"only 22 bytes follow", "truncated"}},
      {file_of("", 0), {"must begin with '{'"}},
      {file_of("[1]", 0), {"must begin with '{'"}},
      {file_of("{\"w\":", 0), {"not JSON from its byte"}},
      {file_of(ok + "x", 8), {"not JSON from its byte"}},
      {file_of("{\"\xff\":1}", 0), {"not JSON from its byte"}},
      {file_of(R"({"w":3})", 0), {"'w' is the number 3", "right is an object"}},
      {file_of(R"({"w":[3]})", 0), {"'w' is a list"}},
      {file_of(R"({"w":null})", 0), {"'w' is null"}},
      {file_of(R"({"__metadata__":{"a":1}})", 0), {"__metadata__", "'a' is the number 1", "right are texts"}},
      {file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), {"'a' twice"}},
      {file_of(R"({"__metadata__":{"a":{}}})", 0), {"'a' is an object"}},
      {file_of(
           R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           8),
       {"'w' occurs twice"}},
      {entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"),
       {"'w'", "dtype occurs twice"}},
      {entry(R"("dtype":"F99","shape":[2],"data_offsets":[0,8])"),
       {"'w'", "unknown dtype 'F99'", "right is BOOL, F4, ", ", F8_E8M0, ", ", I64 or U64"}},
      {entry(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), {"unknown dtype 'f32'"}},
      {entry(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"),
       {"dtype is a list", "the name of a type"}},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)"), {"unknown key 'extra'"}},
      {entry(R"("dtype":"F32","data_offsets":[0,8])"), {"'w' has no shape"}},
      {entry(R"("dtype":"F32","shape":[2])"), {"'w' has no data_offsets"}},
      {entry(R"("shape":[2],"data_offsets":[0,8])"), {"'w' has no dtype"}},
      {entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"),
       {"shape is the number 2", "a list of numbers"}},
      {entry(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), {"shape is a list of lists"}},
      {entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), {"shape has the number -2", "from 0"}},
      {entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), {"the number 2.0"}},
      {entry(R"("dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8])"),
       {"shape has more than 4", "at most 4 dims"}},
      {entry(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"),
       {"18446744073709551615"}},
      {entry(R"("dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,8])"),
       {"99999999999999999999999"}},
      {entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"),
       {"[4611686018427387904, 4]", "more elements"}},
      {entry(R"("dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0])"), {"more elements"}},
      {entry(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8])"), {"more elements"}},
      {entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
       {"[3] of F32 takes 12 bytes", "[0, 8] span 8"}},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
       {"data_offsets is [8, 0]", "begin <= end"}},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), {"data_offsets is [0]"}},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4,8,12,16])"), {"two, begin and end"}},
      {entry(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"),
       {"'w' ends at byte 16", "holds 8", "truncated"}},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), {"'w' begins at byte 4", "from 0 on"}},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), {"take 4 bytes, but 8 follow"}},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
           8),
       {"'b' begins at byte 3", "inside 'a'", "ends at 5"}},
      {file_of(R"({"a\n\u0001":{"dtype":"F99"}})", 0), {"a\\x0a\\x01"}},
  };
  for (size_t i = 0; i < lies.size(); i++) {
    SCOPED_TRACE(i);
    auto parts = lies[i].parts;
    parts.push_back("some.safetensors: ");
    expect_refused([&] { parse(lies[i].file); }, parts);
  }
  expect_refused([] { SafetensorsFile("/no/such.safetensors"); }, {"/no/such.safetensors", "No such file"});
}

TEST(Safetensors, MutationsLoadOrAreRefused) {
  const std::string seeds[] = {
      read_text(kUnitGoldens / "types.safetensors"), read_text(kUnitGoldens / "foreign.safetensors"),
      file_of(R"({"__metadata__":{"w":"{}"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)};
  std::mt19937_64 rng(12);
  int loaded = 0, refused = 0;
  largest_allocation_and_reset();
  for (int i = 0; i < 15000; i++) {
    std::string bad = mutated(seeds[i % 3], rng);
    bool ok = loads_or_refused([&] {
      SafetensorsHeader h = parse_safetensors(bytes_of(bad), "mutant");
      // What it promises must be there: touch every byte.
      volatile char sum = 0;
      for (const SafetensorsEntry& e : h.entries)
        for (int64_t b = e.begin; b < e.end; b++) sum = char(sum + bad.at(size_t(h.data_begin + b)));
    });
    (ok ? loaded : refused)++;
  }
  EXPECT_GT(loaded, 500);
  EXPECT_GT(refused, 5000);
  EXPECT_LT(largest_allocation_and_reset(), 64u << 10);
}

TEST(Safetensors, ADeepHeaderCostsNothing) {
  std::string deep = file_of("{\"w\":" + std::string(1 << 20, '['), 0);
  largest_allocation_and_reset();
  expect_refused([&] { parse(deep); }, {"'w' is a list"});
  EXPECT_LT(largest_allocation_and_reset(), 64u << 10);
}

TEST(Untrusted, NamesAreShownInOneLine) {
  EXPECT_EQ(printable("blocks.0.attn"), "blocks.0.attn");
  EXPECT_EQ(printable("a\nb\x7f\xc3"), "a\\x0ab\\x7f\\xc3");
  EXPECT_LE(printable(std::string(100000, '\n')).size(), 110u);
  EXPECT_TRUE(is_plain_file_name("model-00001-of-00002.safetensors"));
  for (std::string bad : {"", ".", "..", "../x", "a/b", "/x", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_plain_file_name(bad)) << bad;
  EXPECT_FALSE(is_plain_file_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_plain_file_name(std::string(201, 'a')));
}

}  // namespace
}  // namespace trireme
