// The format against a file made elsewhere, round trips, and every lie a header can tell.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

std::string raw_file(const std::string& header, int64_t data_bytes) {
  std::string file(8, '\0');
  uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(static_cast<size_t>(data_bytes), 'd');
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The code and message with which a file is refused.
Error refusal(const std::string& file) {
  try {
    parse_safetensors(bytes_of(file), "x.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.message().rfind("x.safetensors", 0), 0u) << "the file is not named: " << error.message();
    return error;
  }
  return {ErrorCode::kInternal, "accepted"};
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  for (const char* header : {R"({})", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                             R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}    )",
                             R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},)"
                             R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F16","shape":[0,7],"data_offsets":[4,4]},"__metadata__":{"k":"v"}})"}) {
    for (int64_t data_bytes : {0, 4, 8}) {
      Error error = refusal(raw_file(header, data_bytes));
      const bool right_size =
          (std::string(header) == "{}" && data_bytes == 0) || (std::string(header).ends_with(" ") && data_bytes == 4) ||
          (std::string(header).size() > 50 && !std::string(header).ends_with(" ") && data_bytes == 8);
      EXPECT_EQ(error.message() == "accepted", right_size) << header << " " << data_bytes << ": " << error.message();
    }
  }
}

TEST(Safetensors, LiesAreRefusedWithTheirReason) {
  struct Case {
    const char* header;
    int64_t data_bytes;
    const char* reason;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "leave the file's 7 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a gap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       8, "'a' occurs twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "occurs twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, "leave"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, "not a size"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4, "not a size"},
      {R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})", 4, "not a size"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "not a size"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,1e30]}})", 4, "not a size"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "2^63"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0, "2^63"},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "2^63"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, "not a list"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", 4, "not [begin, end]"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":"x"}})", 4, "not [begin, end]"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, "'data_offsets' is missing"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, "'dtype' is of the wrong type"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"zz":1}})", 4, "unknown member 'zz'"},
      {R"({"a":{"dtype":"Q4","shape":[4],"data_offsets":[0,4]}})", 4, "dtype 'Q4' is not one of F64 F32"},
      {R"({"a":[1]})", 0, "not an object"},
      {R"({"__metadata__":{"k":1}})", 0, "not text"},
      {R"({"__metadata__":7})", 0, "not an object"},
      {R"({"a":)", 0, "not valid JSON"},
      {R"([1,2])", 0, "does not begin with '{'"},
      {"", 0, "does not begin with '{'"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
  };
  for (const Case& c : cases) {
    Error error = refusal(raw_file(c.header, c.data_bytes));
    EXPECT_NE(error.message().find(c.reason), std::string::npos) << c.header << "\n  got: " << error.message();
    EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported);
  }
}

TEST(Safetensors, LyingLengthsAndTruncationAreRefused) {
  const std::string good = raw_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  EXPECT_EQ(refusal(good).message(), "accepted");
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_EQ(refusal(good.substr(0, length)).code(), ErrorCode::kCorrupt) << length;
  for (uint64_t length : {uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{0}, uint64_t{1}}) {
    std::string file = good;
    std::memcpy(file.data(), &length, 8);
    EXPECT_EQ(refusal(file).code(), ErrorCode::kCorrupt) << length;
  }
  EXPECT_NE(refusal(raw_file("{" + std::string(50000, '[') + "}", 0)).message(), "accepted");
}

// Single-byte damage anywhere must never crash; most of it is noticed.
TEST(Safetensors, RandomDamageNeverCrashes) {
  Philox random(21);
  const std::string good =
      raw_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}})", 8);
  for (int round = 0; round < 5000; ++round) {
    std::string file = good;
    for (uint64_t hits = 1 + random.below(3); hits > 0; --hits)
      file[random.below(file.size())] = static_cast<char>(random.next_u32());
    try {
      parse_safetensors(bytes_of(file), "damaged");
    } catch (const Error&) {
    }
  }
}

TEST(Safetensors, ReadsAFileMadeByTheReferenceLibrary) {
  std::string path = test_data_path("fp8_tables.safetensors");
  if (path.empty()) GTEST_SKIP() << missing_test_data("fp8_tables.safetensors");
  TensorSource file(path);
  EXPECT_EQ(file.names().size(), 9u);
  TensorView table = file.read("e4m3fn_decode_f32");
  EXPECT_EQ(to_string(table.type), "f32[256]");
  EXPECT_EQ(load_element(DType::kF32, table.bytes.data(), 0x7e), 448);
  EXPECT_EQ(file.find_type("nope"), nullptr);
  try {
    file.read("e4m3_decode_f32");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(error.message().find("nearest: 'e4m3fn_decode_f32'"), std::string::npos) << error.message();
  }
}

TEST(Safetensors, OpensEveryModelFolderOfTheEcosystemGoldens) {
  std::string root = test_data_path("hf_goldens");
  if (root.empty()) GTEST_SKIP() << missing_test_data("hf_goldens");
  int models = 0;
  for (const std::string& name : list_folder(root)) {
    const std::string folder = root + "/" + name;
    if (!path_exists(folder + "/model.safetensors")) continue;
    auto source = open_safetensors(folder);
    EXPECT_FALSE(source->names().empty()) << name;
    for (const std::string& tensor : source->names()) {
      TensorView view = source->read(tensor);
      EXPECT_EQ(static_cast<int64_t>(view.bytes.size()), view.type.bytes()) << name << " " << tensor;
    }
    ++models;
  }
  EXPECT_GE(models, 20);
}

TEST(Safetensors, MisalignedTensorsComeOutAligned) {
  TempFolder folder;
  write_file(folder.file("odd.safetensors"), raw_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                                      R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
                                                      9));
  TensorSource file(folder.file("odd.safetensors"));
  TensorView view = file.read("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.bytes.data()) % 8, 0u);
  EXPECT_EQ(std::memcmp(view.bytes.data(), "dddddddd", 8), 0);
}

std::vector<NamedType> some_tensors() {
  return {{"codes", {DType::kE4M3, {3, 5}}},    {"weight", {DType::kF32, {4, 4}}}, {"empty", {DType::kF32, {0}}},
          {"steps", {DType::kI64, {1}}},        {"half", {DType::kBF16, {7}}},     {"grad", {DType::kE5M2, {9}}},
          {"f16 \"name\"", {DType::kF16, {3}}}, {"ids", {DType::kI32, {2}}},       {"mask", {DType::kU8, {5}}},
          {"wide", {DType::kF64, {2}}}};
}

std::string content_of(const NamedType& tensor) {
  std::string content(static_cast<size_t>(tensor.type.bytes()), '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + tensor.name.size());
  return content;
}

template <typename Writer>
void write_in_parts(Writer& writer) {
  for (const NamedType& tensor : writer.tensors()) {
    std::string content = content_of(tensor);
    auto bytes = bytes_of(content);
    writer.write(tensor.name, bytes.first(bytes.size() / 2));
    writer.write(tensor.name, bytes.subspan(bytes.size() / 2));
  }
  writer.finish();
}

void expect_contents(const TensorSource& source) {
  EXPECT_EQ(source.names().size(), some_tensors().size());
  EXPECT_EQ(source.metadata().at("format"), "octet");
  for (const NamedType& tensor : some_tensors()) {
    TensorView view = source.read(tensor.name);
    EXPECT_EQ(view.type, tensor.type) << tensor.name;
    std::string content = content_of(tensor);
    ASSERT_EQ(view.bytes.size(), content.size());
    EXPECT_TRUE(content.empty() || std::memcmp(view.bytes.data(), content.data(), content.size()) == 0) << tensor.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.bytes.data()) % dtype_bytes(tensor.type.dtype), 0u);
  }
}

TEST(SafetensorsWriter, RoundTrip) {
  TempFolder folder;
  SafetensorsWriter writer(folder.file("m.safetensors"), some_tensors(), {{"format", "octet"}});
  EXPECT_EQ(writer.tensors().front().name, "steps") << "wider types first";
  write_in_parts(writer);
  expect_contents(TensorSource(folder.file("m.safetensors")));
  expect_contents(*open_safetensors(folder.file("m.safetensors")));
}

TEST(SafetensorsWriter, MisuseIsRefusedAndLeavesNoFile) {
  TempFolder folder;
  const std::string path = folder.file("m.safetensors");
  std::string eight(8, 'x');
  {
    SafetensorsWriter writer(path, {{"a", {DType::kF32, {2}}}, {"b", {DType::kF32, {1}}}});
    EXPECT_THROW(writer.write("b", bytes_of(eight)), Error);
    EXPECT_THROW(writer.write("a", bytes_of(eight + "y")), Error);
    EXPECT_THROW(writer.finish(), Error);
    writer.write("a", bytes_of(eight));
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(list_folder(folder.path()).empty());
  EXPECT_THROW(SafetensorsWriter(path, {{"a", {}}, {"a", {}}}), Error);
  EXPECT_THROW(SafetensorsWriter(path, {{"__metadata__", {}}}), Error);
  EXPECT_THROW(SafetensorsWriter(path, {{"\xff", {}}}), Error);
  EXPECT_THROW(SafetensorsFolderWriter(folder.path(), {{"a", {}}}, {}, 0), Error);
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(SafetensorsFolder, TensorsAreDealtInTheirOrder) {
  const TensorType four{DType::kU8, {4}}, wide{DType::kF32, {1}}, nine{DType::kU8, {9}};
  const std::vector<NamedType> tensors = {{"a", four}, {"b", wide}, {"c", nine}, {"d", four}};
  const auto dealt = [&](int64_t most) {
    std::vector<std::string> texts;
    for (const SafetensorsFile& file : deal_tensors("s", tensors, most)) {
      texts.push_back(file.name + ":");
      for (const NamedType& tensor : file.tensors) texts.back() += tensor.name;
    }
    return texts;
  };
  EXPECT_EQ(dealt(100), std::vector<std::string>{"s.safetensors:bacd"});  // within a file the wider ones first
  EXPECT_EQ(dealt(8), (std::vector<std::string>{"s-00001-of-00003.safetensors:ba", "s-00002-of-00003.safetensors:c",
                                                "s-00003-of-00003.safetensors:d"}));
  EXPECT_EQ(deal_tensors("none", {}, 1).at(0).name, "none.safetensors");
  EXPECT_THROW(deal_tensors("s", {{"a", four}, {"b", four}, {"a", four}}, 4), Error);
}

TEST(SafetensorsFolder, ShardsRoundTripAndTheLayoutCanChange) {
  TempFolder folder;
  SafetensorsFolderWriter sharded(folder.path(), some_tensors(), {{"format", "octet"}}, 40);
  write_in_parts(sharded);
  EXPECT_TRUE(path_exists(folder.file("model.safetensors.index.json")));
  EXPECT_GT(list_folder(folder.path()).size(), 3u);
  expect_contents(*open_safetensors(folder.path()));
  SafetensorsFolderWriter single(folder.path(), some_tensors(), {{"format", "octet"}});
  write_in_parts(single);
  EXPECT_FALSE(path_exists(folder.file("model.safetensors.index.json")));
  expect_contents(*open_safetensors(folder.path()));
}

TEST(SafetensorsFolder, TwoSetsOfWeightsAreTold) {
  TempFolder folder;
  SafetensorsFolderWriter sharded(folder.path(), some_tensors(), {{"format", "octet"}}, 40);
  write_in_parts(sharded);
  const std::string index = folder.file("model.safetensors.index.json"), kept = read_file(index);
  SafetensorsFolderWriter single(folder.path(), some_tensors(), {{"format", "octet"}});
  write_in_parts(single);
  testing::internal::CaptureStderr();
  expect_contents(*open_safetensors(folder.path()));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  write_file(index, kept);
  testing::internal::CaptureStderr();
  expect_contents(*open_safetensors(folder.path()));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("model.safetensors.index.json: the first is read"),
            std::string::npos);
}

TEST(SafetensorsFolder, FullDiskLeavesThePreviousModel) {
  TempFolder folder;
  SafetensorsFolderWriter first(folder.path(), some_tensors(), {{"format", "octet"}}, 40);
  write_in_parts(first);
  auto names = list_folder(folder.path());
  for (int64_t room : {0, 500, 1500}) {
    inject_write_fault(room, ENOSPC);
    EXPECT_THROW(
        {
          SafetensorsFolderWriter second(folder.path(), {{"big", {DType::kU8, {3 << 20}}}, {"b", {DType::kU8, {9}}}},
                                         {}, int64_t{2} << 20);
          std::string content(3 << 20, 'n');
          second.write("big", bytes_of(content));
          second.write("b", bytes_of(content).first(9));
          second.finish();
        },
        Error);
    inject_write_fault(-1, 0);
    EXPECT_EQ(list_folder(folder.path()), names);
    expect_contents(*open_safetensors(folder.path()));
  }
}

TEST(SafetensorsFolder, BadIndexesAreRefused) {
  TempFolder folder;
  EXPECT_THROW(open_safetensors(folder.path()), Error);
  write_file(folder.file("s.safetensors"), raw_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  for (const char* index : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":7}})",
                            R"({"weight_map":{"a":"absent.safetensors"}})", R"({"weight_map":{"b":"s.safetensors"}})",
                            R"({"weight_map":{"a":"../s.safetensors"}})", R"({"weight_map":{"a":".."}})",
                            R"({"weight_map":{"a":"/etc/hostname"}})", R"({"weight_map":{"a":""}})",
                            R"({"weight_map":{"a":"s.safetensors","a":"s.safetensors"}})"}) {
    write_file(folder.file("model.safetensors.index.json"), index);
    EXPECT_THROW(open_safetensors(folder.path()), Error) << index;
  }
  write_file(folder.file("model.safetensors.index.json"), R"({"weight_map":{"a":"s.safetensors"}})");
  EXPECT_EQ(open_safetensors(folder.path())->read("a").bytes.size(), 1u);
}

}  // namespace
}  // namespace octet
