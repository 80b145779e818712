// Codecs against tables made by torch (every bf16 and fp16 input), against exact arithmetic, and against each other.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

constexpr DType kSmallFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2};

// Bytes of a tensor of the torch tables; its own reader because base/ cannot include io/.
struct Tables {
  nlohmann::json header;
  std::string data;

  static bool load(Tables* tables) {
    std::string path = test_data_path("fp8_tables.safetensors");
    if (path.empty()) return false;
    std::ifstream file(path, std::ios::binary);
    uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), 8);
    std::string header(header_bytes, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    tables->header = nlohmann::json::parse(header);
    tables->data.assign(std::istreambuf_iterator<char>(file), {});
    return true;
  }
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    int64_t begin = header.at(name).at("data_offsets")[0], end = header.at(name).at("data_offsets")[1];
    std::vector<T> values(static_cast<size_t>(end - begin) / sizeof(T));
    std::memcpy(values.data(), data.data() + begin, static_cast<size_t>(end - begin));
    return values;
  }
};

// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared
#define LOAD_TABLES_OR_SKIP(tables) \
  Tables tables;                    \
  if (!Tables::load(&tables)) GTEST_SKIP() << missing_test_data("fp8_tables.safetensors")
// NOLINTEND(bugprone-macro-parentheses)

// The code of a value, rounded from double.
template <typename Bits>
Bits stored(DType dtype, double value) {
  Bits bits = 0;
  store_element(dtype, &bits, 0, value);
  return bits;
}

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// Converts torch's E4M3FN codes to ours: it overflows to NaN where we saturate, so its NaN from a number is our 0x7e.
uint8_t expected_e4m3(float input, uint8_t torch_code) {
  uint8_t sign = std::signbit(input) ? 0x80 : 0;
  if (std::isnan(input)) return sign | 0x7f;
  return (torch_code & 0x7f) == 0x7f ? (sign | 0x7e) : torch_code;
}

// torch's E5M2 overflows to infinity (0x7c); ours saturates at 0x7b.
uint8_t expected_e5m2(float input, uint8_t torch_code) {
  uint8_t sign = std::signbit(input) ? 0x80 : 0;
  if (std::isnan(input)) return sign | 0x7e;
  return (torch_code & 0x7f) >= 0x7c ? (sign | 0x7b) : torch_code;
}

TEST(DTypeCodec, DecodeTablesMatchTorch) {
  LOAD_TABLES_OR_SKIP(tables);
  auto e4m3 = tables.get<float>("e4m3fn_decode_f32"), e5m2 = tables.get<float>("e5m2_decode_f32");
  for (int code = 0; code < 256; ++code) {
    auto byte = static_cast<uint8_t>(code);
    if (std::isnan(e4m3[code]))
      EXPECT_TRUE(std::isnan(codec::decode_e4m3(byte))) << code;
    else
      EXPECT_TRUE(same_bits(codec::decode_e4m3(byte), e4m3[code])) << code;
    if (std::isnan(e5m2[code]))
      EXPECT_TRUE(std::isnan(codec::decode_e5m2(byte))) << code;
    else
      EXPECT_TRUE(same_bits(codec::decode_e5m2(byte), e5m2[code])) << code;
  }
}

void expect_encodings(const std::vector<float>& inputs, const std::vector<uint8_t>& torch_e4m3,
                      const std::vector<uint8_t>& torch_e5m2) {
  ASSERT_EQ(inputs.size(), torch_e4m3.size());
  ASSERT_EQ(inputs.size(), torch_e5m2.size());
  auto count = static_cast<int64_t>(inputs.size());
  std::vector<uint8_t> e4m3(inputs.size()), e5m2(inputs.size());
  convert(DType::kF32, inputs.data(), DType::kE4M3, e4m3.data(), count);
  convert(DType::kF32, inputs.data(), DType::kE5M2, e5m2.data(), count);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint8_t want4 = expected_e4m3(inputs[i], torch_e4m3[i]), want5 = expected_e5m2(inputs[i], torch_e5m2[i]);
    bool right = codec::encode_e4m3(inputs[i]) == want4 && stored<uint8_t>(DType::kE4M3, inputs[i]) == want4 &&
                 e4m3[i] == want4 && codec::encode_e5m2(inputs[i]) == want5 &&
                 stored<uint8_t>(DType::kE5M2, inputs[i]) == want5 && e5m2[i] == want5;
    if (!right && ++wrong <= 5)
      ADD_FAILURE() << inputs[i] << ": e4m3 " << int(codec::encode_e4m3(inputs[i])) << " want " << int(want4)
                    << ", e5m2 " << int(codec::encode_e5m2(inputs[i])) << " want " << int(want5);
  }
  EXPECT_EQ(wrong, 0);
}

// Against the C library's rounding: every half step, its float32 neighbours, and what is out of range.
TEST(DTypeCodec, I8RoundsToNearestEvenAndSaturates) {
  std::vector<float> inputs = {1e30f, -1e30f, INFINITY, -INFINITY, NAN, -0.0f, 1e-30f};
  for (int half = -300; half <= 300; ++half) {
    const float value = static_cast<float>(half) * 0.5f;
    for (float to : {-1e9f, value, 1e9f}) inputs.push_back(std::nextafter(value, to));
  }
  const auto count = static_cast<int64_t>(inputs.size());
  std::vector<uint8_t> codes(inputs.size());
  convert(DType::kF32, inputs.data(), DType::kI8, codes.data(), count);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const float limited = std::isnan(inputs[i]) ? 0 : std::fmin(127.0f, std::fmax(-127.0f, inputs[i]));
    const float wanted = std::nearbyint(limited);
    EXPECT_EQ(codec::decode_i8(codes[i]), wanted) << inputs[i];
    EXPECT_EQ(codec::encode_i8(inputs[i]), codes[i]) << inputs[i];
    EXPECT_EQ(round_to(DType::kI8, static_cast<double>(inputs[i])), static_cast<double>(wanted)) << inputs[i];
    uint8_t stored = 0;
    store_element(DType::kI8, &stored, 0, static_cast<double>(inputs[i]));
    EXPECT_EQ(stored, codes[i]) << inputs[i];
    EXPECT_EQ(load_element(DType::kI8, &stored, 0), static_cast<double>(wanted)) << inputs[i];
  }
  std::vector<float> back(inputs.size());
  convert(DType::kI8, codes.data(), DType::kF32, back.data(), count);
  for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(back[i], codec::decode_i8(codes[i]));
}

TEST(DTypeCodec, I4RoundsToNearestEvenSaturatesAndLiesInPairs) {
  std::vector<float> inputs = {1e30f, -1e30f, INFINITY, -INFINITY, NAN, -0.0f, 1e-30f, 3};
  for (int half = -20; half <= 20; ++half) {
    const float value = static_cast<float>(half) * 0.5f;
    for (float to : {-1e9f, value, 1e9f, 0.0f}) inputs.push_back(std::nextafter(value, to));
  }
  const auto count = static_cast<int64_t>(inputs.size());
  ASSERT_EQ(storage_bytes(DType::kI4, count), count / 2);
  std::vector<uint8_t> codes(inputs.size() / 2), stored(codes.size(), 0xff);
  convert(DType::kF32, inputs.data(), DType::kI4, codes.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const float value = inputs[static_cast<size_t>(i)];
    const float wanted = std::nearbyint(std::isnan(value) ? 0 : std::fmin(7.0f, std::fmax(-8.0f, value)));
    const int nibble = codes[static_cast<size_t>(i / 2)] >> i % 2 * 4 & 15;
    EXPECT_EQ(nibble >= 8 ? nibble - 16 : nibble, wanted) << value;
    EXPECT_EQ(load_element(DType::kI4, codes.data(), i), wanted) << value;
    EXPECT_EQ(round_to(DType::kI4, static_cast<double>(value)), wanted) << value;
    store_element(DType::kI4, stored.data(), i, static_cast<double>(value));
  }
  EXPECT_EQ(stored, codes);
  std::vector<float> back(inputs.size());
  convert(DType::kI4, codes.data(), DType::kF32, back.data(), count);
  for (int64_t i = 0; i < count; ++i)
    EXPECT_EQ(back[static_cast<size_t>(i)], load_element(DType::kI4, codes.data(), i));
}

TEST(DTypeCodec, AnElementOfI4HasNoBytesAndAnOddCountNeither) {
  EXPECT_THROW(dtype_bytes(DType::kI4), Error);
  EXPECT_THROW(storage_bytes(DType::kI4, 3), Error);
  EXPECT_EQ(storage_bytes(DType::kF32, 3), 12);
}

TEST(DTypeCodec, AllBf16InputsMatchTorch) {
  LOAD_TABLES_OR_SKIP(tables);
  std::vector<float> inputs(65536);
  for (int bits = 0; bits < 65536; ++bits) inputs[bits] = codec::decode_bf16(static_cast<uint16_t>(bits));
  expect_encodings(inputs, tables.get<uint8_t>("all_bf16_to_e4m3fn"), tables.get<uint8_t>("all_bf16_to_e5m2"));
}

TEST(DTypeCodec, AllF16InputsMatchTorch) {
  LOAD_TABLES_OR_SKIP(tables);
  std::vector<float> inputs(65536);
  for (int bits = 0; bits < 65536; ++bits) inputs[bits] = codec::decode_f16(static_cast<uint16_t>(bits));
  expect_encodings(inputs, tables.get<uint8_t>("all_fp16_to_e4m3fn"), tables.get<uint8_t>("all_fp16_to_e5m2"));
}

TEST(DTypeCodec, F32SamplesMatchTorch) {
  LOAD_TABLES_OR_SKIP(tables);
  expect_encodings(tables.get<float>("f32_samples"), tables.get<uint8_t>("f32_samples_to_e4m3fn"),
                   tables.get<uint8_t>("f32_samples_to_e5m2"));
}

// An independent encoder: the nearest code by exact double distance, ties to the even code, saturating.
uint64_t nearest_code(double value, DType dtype, int codes) {
  double best_distance = std::numeric_limits<double>::infinity();
  uint64_t best = 0;
  double magnitude = std::min(std::fabs(value), dtype_max(dtype));
  for (int code = 0; code < codes; ++code) {
    uint16_t bits = static_cast<uint16_t>(code);
    double decoded = load_element(dtype, &bits, 0);
    if (!std::isfinite(decoded)) continue;
    double distance = std::fabs(decoded - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best_distance = distance, best = code;
  }
  return best | (std::signbit(value) ? static_cast<uint64_t>(codes) : 0);
}

// Around every midpoint of neighbouring codes: one ulp of float64 and of float32 to each side. A double one float64 ulp
// above a midpoint is the case that rounding through float32 gets wrong.
TEST(DTypeCodec, Fp8MidpointsRoundOnceFromDouble) {
  for (DType dtype : {DType::kE4M3, DType::kE5M2}) {
    for (int code = 0; code < 0x7e; ++code) {
      uint8_t lower = static_cast<uint8_t>(code), upper = static_cast<uint8_t>(code + 1);
      double a = load_element(dtype, &lower, 0), b = load_element(dtype, &upper, 0);
      if (!std::isfinite(b)) continue;
      double middle = (a + b) / 2;
      for (double value : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, 1e9),
                           static_cast<double>(std::nextafterf(static_cast<float>(middle), 0.0f)),
                           static_cast<double>(std::nextafterf(static_cast<float>(middle), 1e9f)), a}) {
        for (double sign : {1.0, -1.0}) {
          uint8_t got = 0;
          store_element(dtype, &got, 0, sign * value);
          EXPECT_EQ(got, nearest_code(sign * value, dtype, 128)) << dtype_name(dtype) << " " << sign * value;
          float single = static_cast<float>(sign * value);
          uint8_t from_single = dtype == DType::kE4M3 ? codec::encode_e4m3(single) : codec::encode_e5m2(single);
          EXPECT_EQ(from_single, nearest_code(single, dtype, 128)) << dtype_name(dtype) << " " << single;
        }
      }
    }
  }
}

TEST(DTypeCodec, Bf16AndF16RoundOnceFromDouble) {
  // 1 + half an ulp + a bit that float32 cannot hold: through float32 this would tie to even and go down.
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, 1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, 1 + 0x1p-8 - 0x1p-40), 0x3f80);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, 1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, 1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, -(1 + 3 * 0x1p-11 - 0x1p-40)), 0xbc01);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, 65519.999999), 0x7bff);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, 65520.0), 0x7c00);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, 0x1p-25), 0);
  EXPECT_EQ(stored<uint16_t>(DType::kF16, std::nextafter(0x1p-25, 1.0)), 1);
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, 1e300), 0x7f80);
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, -1e-300), 0x8000);
  EXPECT_EQ(stored<uint16_t>(DType::kBF16, 0x1p-133), 1);
}

TEST(DTypeCodec, F16MatchesTheCompilersHalf) {
  Philox random(7);
  for (int i = 0; i < 65536; ++i) {
    uint16_t bits = static_cast<uint16_t>(i);
    float decoded = codec::decode_f16(bits);
    if (!std::isnan(decoded)) {
      EXPECT_EQ(codec::encode_f16(decoded), bits);
      EXPECT_EQ(codec::decode_bf16(codec::encode_bf16(codec::decode_bf16(bits))), codec::decode_bf16(bits));
    }
#ifdef __FLT16_MAX__
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    EXPECT_TRUE(std::isnan(decoded) || same_bits(static_cast<float>(half), decoded)) << i;
    float any = std::bit_cast<float>(random.next_u32());
    _Float16 rounded = static_cast<_Float16>(any);
    uint16_t want;
    std::memcpy(&want, &rounded, 2);
    EXPECT_TRUE(std::isnan(any) || codec::encode_f16(any) == want) << any;
#endif
  }
}

TEST(DTypeCodec, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(codec::encode_e4m3(inf), 0x7e);
  EXPECT_EQ(codec::encode_e4m3(-inf), 0xfe);
  EXPECT_EQ(codec::encode_e4m3(nan), 0x7f);
  EXPECT_EQ(codec::encode_e4m3(-nan), 0xff);
  EXPECT_EQ(codec::encode_e5m2(inf), 0x7b);
  EXPECT_EQ(codec::encode_e5m2(-1e30f), 0xfb);
  EXPECT_EQ(codec::encode_e5m2(nan), 0x7e);
  EXPECT_EQ(codec::encode_e4m3(-0.0f), 0x80);
  EXPECT_EQ(codec::encode_f16(inf), 0x7c00);
  EXPECT_TRUE(std::isnan(codec::decode_f16(codec::encode_f16(nan))));
  EXPECT_TRUE(std::isnan(codec::decode_bf16(codec::encode_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(round_to(DType::kE4M3, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(round_to(DType::kE5M2, 1e300), 57344);
  EXPECT_EQ(round_to(DType::kI32, -3.9), -3);
  EXPECT_EQ(round_to(DType::kU8, 300), 255);
  EXPECT_EQ(round_to(DType::kU8, -1), 0);
  EXPECT_EQ(round_to(DType::kI64, std::numeric_limits<double>::quiet_NaN()), 0);
}

// Every array loop equals the one-element codecs, at every alignment of the tail.
TEST(DTypeConvert, ArraysEqualElements) {
  Philox random(11);
  for (DType from : kSmallFloats) {
    for (DType to : kSmallFloats) {
      for (int64_t count : {1, 15, 16, 17, 63, 64, 65, 1000}) {
        std::vector<uint32_t> source(static_cast<size_t>(count)),
            destination(static_cast<size_t>(count) + 1, 0xabababab);
        for (auto& word : source) word = random.next_u32();
        convert(from, source.data(), to, destination.data(), count);
        for (int64_t i = 0; i < count; ++i) {
          double value = load_element(from, source.data(), i), got = load_element(to, destination.data(), i);
          if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(got));
          } else if (from == to) {
            EXPECT_EQ(got, value) << "a copy keeps infinities";
          } else {
            EXPECT_EQ(got, round_to(to, value)) << dtype_name(from) << " to " << dtype_name(to) << " of " << value;
          }
        }
        auto* guard = reinterpret_cast<const uint8_t*>(destination.data()) + count * dtype_bytes(to);
        EXPECT_EQ(*guard, 0xab) << "written past the end";
      }
    }
  }
}

TEST(DTypeConvert, DoubleRoundsOnceAndBadInputIsRefused) {
  double source[] = {1 + 0x1p-8 + 0x1p-40, -2.5};
  uint16_t bf16[2];
  convert(DType::kF64, source, DType::kBF16, bf16, 2);
  EXPECT_EQ(bf16[0], 0x3f81);
  double back[2];
  convert(DType::kBF16, bf16, DType::kF64, back, 2);
  EXPECT_EQ(back[1], -2.5);
  EXPECT_THROW(convert(DType::kI32, source, DType::kF32, back, 1), Error);
  EXPECT_THROW(convert(DType::kF64, source, DType::kF32, back, -1), Error);
}

TEST(DType, NamesRoundTrip) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2, DType::kI64,
                      DType::kI32, DType::kU8})
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  EXPECT_THROW(parse_dtype("fp32"), Error);
  EXPECT_FALSE(is_float(DType::kI32));
}

}  // namespace
}  // namespace octet
