#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/store.h"
#include "mesh/shard.h"
#include "splits.h"
#include "support.h"

namespace trireme {
namespace {

Manifest some_manifest(int64_t step) {
  Manifest m;
  m.step = step, m.tokens = step * 8192, m.samples = step * 32;
  m.seed = UINT64_MAX, m.spec_hash = 0x0123456789abcdef;
  m.run_toml = "[model]\narch = \"llama\" # \u00e9\n";
  m.state = {{"losses", {1.5, 0.1, 1e-300}}, {"best", 0.1}, {"note", "a \"b\"\n"}};
  return m;
}

std::vector<float> read_back(const Checkpoint& c, const Whole& w, const Part& p) {
  std::vector<float> out(size_t(p.range.size()), -1);
  c.read({w.name, w.global, p.box, p.range, Tensor(out.data(), {p.range.size()}, DType::f32)});
  return out;
}

TEST(Manifest, ComesBackAndNoByteOfItCanChange) {
  Manifest m = some_manifest(7);
  m.saved_at = "2025-01-31T12:00:00Z";
  m.files = {{"a.safetensors", {12, 34}}, {"b.safetensors", {0, UINT64_MAX}}};
  std::string text = to_text(m);
  EXPECT_EQ(parse_manifest(text, "manifest.json"), m);
  EXPECT_EQ(nlohmann::json::parse(text).at("step"), 7);  // plain JSON for others
  for (size_t i = 0; i < text.size(); i++)
    for (int bit = 0; bit < 8; bit++) {
      std::string bad = text;
      bad[i] = char(bad[i] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(bad, "m"), Error) << i;
    }
  for (size_t n = 0; n < text.size(); n++) EXPECT_THROW(parse_manifest(text.substr(0, n), "m"), Error) << n;
  EXPECT_THROW(parse_manifest(text + " ", "m"), Error);
  m.run_toml = "\xff";
  expect_refused([&] { to_text(m); }, {"not UTF-8"});
}

// A manifest whose checksum is right whatever it says.
std::string sealed(const std::string& body) {
  return "{\"xxh3\": \"" + hex64(hash64(body.data(), body.size())) + "\",\n" + body;
}

TEST(Manifest, SealedLiesAreRefused) {
  const std::string good =
      R"("format":1,"step":1,"tokens":2,"samples":3,"seed":4,"spec_hash":"0000000000000000","run_toml":"","saved_at":"","state":{},"files":[{"name":"a","bytes":1,"xxh3":"00000000000000ff"}]})";
  EXPECT_NO_THROW(parse_manifest(sealed(good), "m"));
  struct Lie {
    std::string from, to;
    std::vector<std::string> parts;
  };
  for (const Lie& l : std::vector<Lie>{
           {R"("format":1)", R"("format":2)", {"checkpoint format 2", "reads 1"}},
           {R"("format":1)", R"("format":"1")", {"'format' is \"1\""}},
           {R"("step":1)", R"("step":-1)", {"'step' is -1", "from 0 on"}},
           {R"("step":1)", R"("step":1.0)", {"'step' is 1.0"}},
           {R"("step":1)", R"("step":1e999)", {"beyond the range"}},
           {R"("step":1)", R"("step":18446744073709551615)", {"'step' is 18446744073709551615"}},
           {R"("step":1,)", "", {"no key 'step'"}},
           {R"("seed":4)", R"("seed":null)", {"'seed' is null"}},
           {R"("run_toml":"")", R"("run_toml":[])", {"'run_toml' is []", "a text"}},
           {"0000000000000000", "000000000000000g", {"'spec_hash'", "16 hex digits"}},
           {"0000000000000000", "00", {"'spec_hash' is '00'"}},
           {R"("name":"a")", R"("name":"../../etc/passwd")", {"../../etc/passwd", "inside the folder"}},
           {R"("name":"a")", R"("name":"manifest.json")", {"manifest.json"}},
           {R"("bytes":1)", R"("bytes":-1)", {"'bytes' is -1"}},
           {R"([{"name":"a","bytes":1,"xxh3":"00000000000000ff"}])", "[]", {"'files' must be"}},
           {R"([{"name":"a","bytes":1,"xxh3":"00000000000000ff"}])", "[3]", {"'files' has 3"}},
           {R"("files":[)", R"("files":[{"name":"a","bytes":1,"xxh3":"00000000000000ff"},)", {"'a' twice"}},
           {R"("state":{})",
            "\"state\":" + std::string(100, '[') + std::string(100, ']'),
            {"deeper than 32"}},
           {R"("state":{})", R"("state":)", {"not JSON"}},
       }) {
    std::string bad = good;
    ASSERT_NE(bad.find(l.from), std::string::npos) << l.from;
    bad.replace(bad.find(l.from), l.from.size(), l.to);
    auto parts = l.parts;
    parts.push_back("m: ");
    expect_refused([&] { parse_manifest(sealed(bad), "m"); }, parts);
  }
}

TEST(Checkpoint, AnySplitIsReadByAnyOther) {
  std::mt19937_64 rng(31);
  for (int round = 0; round < 80; round++) {
    TempFolder tmp;
    std::vector<Whole> tensors;
    CheckpointWriter writer(tmp.path(), round);
    Stored files[3];
    for (int i = 0; i < 4; i++) {
      tensors.emplace_back("t" + std::to_string(i) + "/master", random_shape(rng, 9), rng);
      for (const Part& p : random_split(rng, tensors.back().global)) files[rng() % 3].add(tensors.back(), p);
      if (rng() % 2)
        files[rng() % 3].add(tensors.back(), whole(tensors.back().global));  // held twice: allowed
    }
    for (int f = 0; f < 3; f++) writer.write("rank-" + std::to_string(f) + ".safetensors", files[f].tensors);
    Checkpoint c = Checkpoint::open(writer.publish(some_manifest(0)));
    EXPECT_EQ(c.manifest().step, round);
    EXPECT_EQ(c.manifest().state, some_manifest(0).state);
    EXPECT_EQ(c.names(), (std::vector<std::string>{"t0/master", "t1/master", "t2/master", "t3/master"}));
    for (const Whole& w : tensors) {
      EXPECT_EQ(c.find(w.name)->global, w.global);
      EXPECT_EQ(read_back(c, w, whole(w.global)), w.values);
      for (const Part& p : random_split(rng, w.global)) EXPECT_EQ(read_back(c, w, p), w.part(p));
      for (int i = 0; i < 5; i++) {
        Part p = random_part(rng, w.global);
        EXPECT_EQ(read_back(c, w, p), w.part(p));
      }
    }
  }
}

// As ranks store: boxes on the tensor-parallel axis, ranges of them on the ZeRO group.
TEST(Checkpoint, ReshardsBetweenMeshes) {
  std::mt19937_64 rng(32);
  TempFolder tmp;
  Whole q("q/master", {96, 70}, rng), o("o/master", {70, 96}, rng), norm("norm/master", {9001}, rng);
  struct Layout {
    Degrees degrees;
    bool zero;
  };
  const std::vector<Layout> layouts = {
      {{}, false}, {{.tp = 3}, false}, {{.dp = 3}, true}, {{.dp = 2, .tp = 4}, true}};
  auto parts_of = [](const Layout& l, const Whole& w, int sharded_dim, const Mesh& mesh, int rank) {
    ShardSpec spec;
    if (sharded_dim >= 0) spec.axes_of_dim[size_t(sharded_dim)] = {Axis::tp};
    Slice box = local_slice(w.global, spec, mesh, rank);
    const Axis dp[] = {Axis::dp};
    return Part{box, l.zero ? flat_range(box, mesh, dp, rank) : Range{0, box.extent.numel()}};
  };
  for (size_t from = 0; from < layouts.size(); from++) {
    Mesh mesh(layouts[from].degrees);
    CheckpointWriter writer(tmp.path(), int64_t(from));
    for (int rank = 0; rank < mesh.world(); rank++) {
      Stored s;
      s.add(q, parts_of(layouts[from], q, 0, mesh, rank));
      s.add(o, parts_of(layouts[from], o, 1, mesh, rank));
      s.add(norm, parts_of(layouts[from], norm, -1, mesh, rank));
      writer.write("rank-" + std::to_string(rank) + ".safetensors", s.tensors);
    }
    Checkpoint c = Checkpoint::open(writer.publish({}));
    for (const Layout& to : layouts) {
      Mesh other(to.degrees);
      for (int rank = 0; rank < other.world(); rank++)
        for (auto [w, dim] : {std::pair<const Whole*, int>{&q, 0}, {&o, 1}, {&norm, -1}}) {
          Part p = parts_of(to, *w, dim, other, rank);
          EXPECT_EQ(read_back(c, *w, p), w->part(p));
        }
    }
  }
}

TEST(Checkpoint, WholeTensorsAreAPlainSafetensorsFile) {
  std::mt19937_64 rng(33);
  TempFolder tmp;
  Whole w("blocks.0.attn.q.weight/master", {3, 5}, rng);
  Stored s;
  s.add(w, whole(w.global));
  fs::path folder = save(tmp.path(), some_manifest(3), s.tensors);
  SafetensorsFile f(folder / "rank-00000.safetensors");
  EXPECT_TRUE(f.header().metadata.empty());
  ASSERT_NE(f.find(w.name), nullptr);
  EXPECT_EQ(f.find(w.name)->shape, (Shape{3, 5}));
}

TEST(Checkpoint, ComputeWeightsComeFromTheMaster) {
  TempFolder tmp;
  float master[3] = {1.0f, 1.00390625f, -1e30f};
  NamedTensor t{"w/master", {3}, whole({3}).box, {0, 3}, Tensor(master, {3}, DType::f32)};
  Checkpoint c = Checkpoint::open(save(tmp.path(), some_manifest(1), {&t, 1}));
  bf16 weights[2];
  c.read("w/master", t.box, {1, 3}, Tensor(weights, {2}, DType::bf16));
  EXPECT_EQ(weights[0].bits, bf16(master[1]).bits);
  EXPECT_EQ(weights[1].bits, bf16(master[2]).bits);
}

TEST(Checkpoint, MissingAndOtherTensorsAreNamed) {
  std::mt19937_64 rng(34);
  TempFolder tmp;
  Whole w("w/master", {4, 6}, rng);
  Stored s;
  s.add(w, {{{0, 0}, {4, 6}}, {0, 9}});
  s.add(w, {{{2, 0}, {2, 3}}, {0, 6}});
  Checkpoint c = Checkpoint::open(save(tmp.path(), some_manifest(1), s.tensors));
  EXPECT_EQ(read_back(c, w, {{{0, 0}, {4, 6}}, {2, 9}}), w.part({{{0, 0}, {4, 6}}, {2, 9}}));
  expect_refused([&] { read_back(c, w, whole(w.global)); },
                 {"'w/master'", "elements [9, 12) of the box at [0, 0] of extent [4, 6]"});
  expect_refused(
      [&] {
        read_back(c, w, {{{2, 0}, {2, 6}}, {0, 12}});
      },
      {"elements [3, 6) of the box at [2, 0]"});
  Whole other = w;
  other.name = "x";
  expect_refused([&] { read_back(c, other, whole(w.global)); }, {"holds no tensor 'x'"});
  Whole larger("w/master", {4, 7}, rng);
  expect_refused(
      [&] {
        read_back(c, larger, {{{0, 0}, {1, 1}}, {0, 1}});
      },
      {"has shape [4, 6]", "model's is [4, 7]"});
  float f;
  expect_refused(
      [&] {
        c.read("w/master", {{4, 6}, {1, 1}}, {0, 1}, Tensor(&f, {1}, DType::f32));
      },
      {"[4, 6] of extent [1, 1] leaves the shape [4, 6]"});
  int32_t i;
  expect_refused(
      [&] {
        c.read("w/master", {{0, 0}, {1, 1}}, {0, 1}, Tensor(&i, {1}, DType::i32));
      },
      {".safetensors: tensor 'w/master': stored as f32, wanted as i32"});
}

// A checkpoint of one file with these contents, and a manifest that agrees with it.
fs::path sealed_checkpoint(const TempFolder& tmp, const std::string& file) {
  fs::path folder = tmp / "step-00000001";
  fs::create_directories(folder);
  write_raw(folder / "f.safetensors", file);
  Manifest m = some_manifest(1);
  m.files = {{"f.safetensors", {int64_t(file.size()), hash64(file.data(), file.size())}}};
  write_raw(folder / kManifestName, to_text(m));
  return folder;
}

std::string one_part_file(const std::string& entry, const std::string& meta, const Shape& shape = {2}) {
  SafetensorsItem item{entry, DType::f32, shape};
  return safetensors_header({&item, 1}, {{entry, meta}}) + std::string(size_t(shape.numel()) * 4, 'x');
}

TEST(Checkpoint, PartsThatLieAreRefused) {
  TempFolder tmp;
  const std::string good = R"({"name":"w","global":[2,3],"offset":[1,0],"extent":[1,3],"range":[1,3]})";
  Checkpoint c = Checkpoint::open(sealed_checkpoint(tmp, one_part_file("w#1", good)));
  EXPECT_EQ(c.names(), (std::vector<std::string>{"w"}));
  struct Lie {
    std::string from, to;
    std::vector<std::string> parts;
  };
  for (const Lie& l : std::vector<Lie>{
           {R"("name":"w")", R"("name":3)", {"a 'name'"}},
           {good, "[]", {"a 'name'"}},
           {good, "{", {"not JSON"}},
           {"[2,3]", "[2]", {"a box of 2 dims", "[2]"}},
           {"[2,3]", "[2,-3]", {"'global' must be"}},
           {"[2,3]", "[2,3,1,1,1]", {"'global' must be a list of at most 4"}},
           {"[2,3]", "[4611686018427387904,4611686018427387904]", {"too many elements"}},
           {"[1,0]", "[2,0]", {"leaves the shape [2, 3]"}},
           {"[1,0]", "[9223372036854775807,0]", {"leaves the shape"}},
           {"[1,3]", "[1,4]", {"leaves the shape"}},
           {R"("range":[1,3])", R"("range":[1,4])", {"range [1, 4) leaves the 3 elements"}},
           {R"("range":[1,3])", R"("range":[3,1])", {"range [3, 1)"}},
           {R"("range":[1,3])", R"("range":[1])", {"'range' must be [begin, end]"}},
           {R"("range":[1,3])", R"("range":[0,3])", {"has 3 elements, but 2 are stored"}},
           {R"(,"range":[1,3])", "", {"'range'"}},
       }) {
    std::string bad = good;
    bad.replace(bad.find(l.from), l.from.size(), l.to);
    auto parts = l.parts;
    parts.push_back("f.safetensors: tensor 'w#1'");
    expect_refused([&] { Checkpoint::open(sealed_checkpoint(tmp, one_part_file("w#1", bad))); }, parts);
  }
  // Two parts that disagree on what the tensor is.
  std::vector<SafetensorsItem> two = {{"w#1", DType::f32, {2}}, {"w", DType::f32, {2}}};
  two = file_order(two);
  expect_refused(
      [&] {
        Checkpoint::open(
            sealed_checkpoint(tmp, safetensors_header(two, {{"w#1", good}}) + std::string(16, 'x')));
      },
      {"shape [2, 3] in f32", "other parts say [2]"});
  std::string mask = R"({"m":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})";
  std::string length(8, '\0');
  length[0] = char(mask.size());
  expect_refused([&] { Checkpoint::open(sealed_checkpoint(tmp, length + mask + "x")); }, {"'m'", "BOOL"});
}

TEST(Checkpoint, MutationsNeverLoadAsWhole) {
  std::mt19937_64 rng(35);
  TempFolder tmp;
  Whole a("a/master", {3, 4}, rng), b("b/master", {5}, rng);
  Stored s;
  for (const Part& p : random_split(rng, a.global)) s.add(a, p);
  s.add(b, whole(b.global));
  fs::path folder = save(tmp.path(), some_manifest(1), s.tensors);
  const std::string names[] = {"manifest.json", "rank-00000.safetensors"};
  std::string good[2];
  for (int f = 0; f < 2; f++) good[f] = read_text(folder / names[f]);
  for (int i = 0; i < 1000; i++) {
    int f = i % 2;
    std::string bad = mutated(good[f], rng);
    write_raw(folder / names[f], bad);
    bool loaded = loads_or_refused([&] { Checkpoint::open(folder); });
    EXPECT_EQ(loaded, bad == good[f]);
    write_raw(folder / names[f], good[f]);
  }
  for (int f = 0; f < 2; f++) {
    fs::remove(folder / names[f]);
    expect_refused([&] { Checkpoint::open(folder); }, {names[f]});
    fs::create_directory(folder / names[f]);
    expect_refused([&] { Checkpoint::open(folder); }, {names[f]});
    fs::remove(folder / names[f]);
    write_raw(folder / names[f], good[f]);
  }
  EXPECT_EQ(read_back(Checkpoint::open(folder), a, whole(a.global)), a.values);
}

TEST(Checkpoint, SealedMutationsLoadOrAreRefused) {
  std::mt19937_64 rng(36);
  TempFolder tmp;
  Stored s;
  Whole a("a", {3, 4}, rng), b("b", {5}, rng);
  for (const Part& p : random_split(rng, a.global)) s.add(a, p);
  s.add(b, {{{1}, {3}}, {1, 3}});
  const std::string good =
      read_text(save(tmp.path(), some_manifest(9), s.tensors) / "rank-00000.safetensors");
  int loaded = 0;
  largest_allocation_and_reset();
  for (int i = 0; i < 1500; i++) {
    fs::path folder = sealed_checkpoint(tmp, mutated(good, rng));
    loaded += loads_or_refused([&] {
      Checkpoint c = Checkpoint::open(folder);
      for (const std::string& name : c.names()) {
        const Shape& global = c.find(name)->global;
        if (global.numel() > 1000) continue;  // allowed: a part of something large
        std::vector<double> room(size_t(global.numel()));
        DType type = c.find(name)->dtype;
        loads_or_refused([&] {
          Part p = whole(global);
          c.read(name, p.box, p.range, Tensor(room.data(), {p.range.size()}, type));
        });
      }
    });
  }
  EXPECT_GT(loaded, 40);
  EXPECT_LT(largest_allocation_and_reset(), 64u << 10);
}

}  // namespace
}  // namespace trireme
