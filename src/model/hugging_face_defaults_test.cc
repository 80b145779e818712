// config.json as transformers' own config classes know it: testdata/transformers_configs.json holds the default and the
// types of each of their fields (tests/models/make_config_table.py writes it).
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

using Json = nlohmann::json;

const Json& classes() {
  static const Json table = [] {
    const std::string path = source_dir() + "/src/model/testdata/transformers_configs.json";
    return parse_json(read_file(path), path);
  }();
  return table;
}

Json written(const ModelConfig& config) { return Json::parse(to_hugging_face_config(config, {}, "float32")); }

// Everything a file says about the model, in one text; or the error.
std::string meaning(const Json& file) {
  try {
    return to_hugging_face_config(parse_hugging_face_config(file.dump(), "config.json"), {}, "float32");
  } catch (const Error& error) {
    return error.message();
  }
}

// Wide enough for every class's heads and head sizes.
ModelConfig wide(const std::string& architecture) {
  ModelConfig config = model_family(architecture);
  config.vocab_size = 60000, config.hidden = 4096, config.layers = 1, config.heads = 32, config.max_positions = 512;
  config.dropout = 0.25, config.norm_eps = 1e-3, config.init_std = 0.25, config.rope.theta = 777;
  return config;
}

// The name in files of old of a field that is now in rope_parameters.
std::string name_in_files(const std::string& architecture, const std::string& field) {
  if (architecture == "gpt_neox" && field == "rope_theta") return "rotary_emb_base";
  if (architecture == "gpt_neox" && field == "partial_rotary_factor") return "rotary_pct";
  return field;
}

// A file without a field means what the class's default for it says, or is refused by the field's name.
TEST(HuggingFaceDefaults, AreThoseOfTransformersClasses) {
  for (const std::string& architecture : architectures()) {
    int same = 0;
    Json file = written(wide(architecture));
    file.erase("rope_parameters");  // the fields beside it are what is left out below
    const auto compare = [&](const Json& fields, const auto& part) {
      for (const auto& [field, row] : fields.items()) {
        if (!row.contains("default")) continue;
        const std::string name = name_in_files(architecture, field);
        Json without = file, given = file;
        part(without).erase(name);
        part(given)[name] = row.at("default");
        const std::string meant = meaning(without);
        if (meant.find("\"" + name + "\" is missing") != std::string::npos) continue;
        EXPECT_EQ(meant, meaning(given)) << architecture << ": " << name << " = " << row.at("default");
        same += meant.starts_with("{");
      }
    };
    const Json& fields = classes().at(architecture);
    compare(fields, [](Json& whole) -> Json& { return whole; });
    if (fields.contains("attn_config"))
      compare(fields.at("attn_config").at("fields"), [](Json& whole) -> Json& { return whole.at("attn_config"); });
    EXPECT_GE(same, 10) << architecture;
  }
}

const char* type_of(const Json& value) {
  if (value.is_number_integer()) return "integer";
  return value.is_number() ? "float" : value.type_name();
}

void expect_types(const Json& object, const Json& fields, const std::string& where) {
  for (const auto& [name, row] : fields.items()) {
    if (!object.contains(name)) continue;
    const Json& value = object.at(name);
    if (row.contains("fields")) {
      expect_types(value, row.at("fields"), where + " " + name);
      continue;
    }
    const Json& types = row.at("types");
    EXPECT_NE(std::find(types.begin(), types.end(), type_of(value)), types.end())
        << where << ": " << name << " = " << value << " (want " << types << ")";
    const bool size = row.at("default").is_number_integer() && row.at("default") > 0;
    EXPECT_TRUE(!size || value != 0 || name.ends_with("_token_id")) << where << ": " << name << " = 0";
  }
}

// The classes check types when a file is loaded.
TEST(HuggingFaceTypes, OfWhatIsWrittenAreThoseOfTransformersClasses) {
  for (const std::string& architecture : architectures()) {
    ModelConfig set = wide(architecture), scaled = set, fresh = model_family(architecture);
    set.intermediate = 4 * set.hidden, set.kv_heads = set.kv_head_count(), set.head_dim = set.head_size();
    scaled.rope.scaling = "llama3", scaled.rope.factor = 8, scaled.attention_scale = 1, scaled.norm_eps = 1;
    for (const ModelConfig& config : {fresh, set, scaled}) {
      const Json file = written(config);
      expect_types(file, classes().at(architecture), architecture);
      for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"})  // else a default outside the vocabulary
        EXPECT_TRUE(file.contains(id) && file.at(id).is_null()) << architecture << " " << id;
    }
  }
}

}  // namespace
}  // namespace octet
