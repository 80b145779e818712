// BERT, RoBERTa and XLM-RoBERTa: encoders with a norm behind each residual sum. RoBERTa's positions count from the
// padding id on.
#include "model/families/shared.h"

namespace octet {
namespace {

// The head is what the class in `architectures` says; nothing there: the bare model.
void head_fields(ConfigFields& f, ModelConfig& c, const std::string& family) {
  std::string suffix = c.head == Head::kMaskedLm ? (c.labels > 0 ? "ForPreTraining" : "ForMaskedLM")
                       : c.labels > 0            ? "ForSequenceClassification"
                                                 : "Model";
  std::vector<std::string> classes = {family + suffix};
  f.optional({"architectures"}, classes);
  if (f.reading()) {
    const std::string name = classes.empty() ? family + "Model" : classes[0];
    suffix = name.starts_with(family) ? name.substr(family.size()) : name;
    const bool pretrains = family == "Bert";  // the others have no class for it
    const bool pretraining = pretrains && suffix == "ForPreTraining",
               classifies = suffix == "ForSequenceClassification";
    c.head = pretraining || suffix == "ForMaskedLM" ? Head::kMaskedLm : Head::kNone;
    if (c.head == Head::kNone && !classifies && suffix != "Model")
      f.refuse("architectures", '"' + name + '"',
               family + "Model, " + family + "ForMaskedLM, " + (pretrains ? "BertForPreTraining, " : "") + family +
                   "ForSequenceClassification");
    c.pooler = suffix == "Model" || pretraining || classifies;
    c.labels = pretraining ? 2 : 0;
    c.bias.head = c.head == Head::kMaskedLm;
    if (classifies) f.labels(c.labels);
  } else if (c.head == Head::kNone && c.labels > 0) {
    f.labels(c.labels);
  }
}

void encoder_fields(ConfigFields& f, ModelConfig& c, const std::string& family, int64_t types) {
  if (f.reading()) c.dropout = 0.1, c.token_types = types;
  hidden_fields(f, c, 512);
  f.optional({"layer_norm_eps"}, c.norm_eps);
  f.optional({"type_vocab_size"}, c.token_types);
  f.activation({"hidden_act"}, c.activation);
  f.dropout({"hidden_dropout_prob", "attention_probs_dropout_prob"}, c.dropout);
  f.only("position_embedding_type", "absolute");
  f.only("is_decoder", false);
  f.only("add_cross_attention", false);
  head_fields(f, c, family);
  if (c.head == Head::kMaskedLm) f.only("tie_word_embeddings", true);
}

ModelConfig encoder_facts() {
  ModelConfig c;
  c.causal = false, c.residual = Residual::kPostNorm, c.activation = Activation::kGelu, c.embed_norm = true;
  c.norm_eps = 1e-12, c.token_types = 2, c.head = Head::kNone, c.pooler = true;
  return c;
}

TensorNames encoder_tensors(const char* prefix) {
  TensorNames t;
  t.prefix = prefix, t.layer = "encoder.layer.", t.embed = "embeddings.word_embeddings",
  t.positions = "embeddings.position_embeddings", t.types = "embeddings.token_type_embeddings",
  t.embed_norm = "embeddings.LayerNorm", t.q = "attention.self.query", t.k = "attention.self.key",
  t.v = "attention.self.value", t.o = "attention.output.dense", t.norm1 = "attention.output.LayerNorm",
  t.up = "intermediate.dense", t.down = "output.dense", t.norm2 = "output.LayerNorm", t.pooler = "pooler.dense";
  return t;
}

// max_position_embeddings counts the rows of the table, of which those up to the padding id are no positions.
void roberta_fields(ConfigFields& f, ModelConfig& c, const std::string& family) {
  int64_t pad = c.position_offset - 1;
  if (!f.reading()) c.max_positions += c.position_offset;
  encoder_fields(f, c, family, 1);
  if (!f.reading()) return;
  f.optional({"pad_token_id"}, pad);
  if (pad < 0 || pad + 1 >= c.max_positions)
    f.refuse("pad_token_id", std::to_string(pad), "one within max_position_embeddings");
  c.position_offset = pad + 1;
  c.max_positions -= c.position_offset;
}

Family roberta_kind(const char* name, const char* class_name, void (*fields)(ConfigFields&, ModelConfig&)) {
  ModelConfig facts = encoder_facts();
  facts.position_offset = 2, facts.token_types = 1;
  TensorNames t = encoder_tensors("roberta.");
  t.head = "lm_head", t.transform = "lm_head.dense", t.transform_norm = "lm_head.layer_norm",
  t.class_dense = "classifier.dense", t.classes = "classifier.out_proj";
  return {name, class_name, facts, fields, t};
}

}  // namespace

Family bert_family() {
  TensorNames t = encoder_tensors("bert.");
  t.head = "cls.predictions", t.transform = "cls.predictions.transform.dense",
  t.transform_norm = "cls.predictions.transform.LayerNorm", t.classes = "classifier",
  t.next_sentence = "cls.seq_relationship";
  return {"bert", "BertModel", encoder_facts(),
          [](ConfigFields& f, ModelConfig& c) { encoder_fields(f, c, "Bert", 2); }, t};
}

Family roberta_family() {
  return roberta_kind("roberta", "RobertaModel",
                      [](ConfigFields& f, ModelConfig& c) { roberta_fields(f, c, "Roberta"); });
}

Family xlm_roberta_family() {
  return roberta_kind("xlm-roberta", "XLMRobertaModel",
                      [](ConfigFields& f, ModelConfig& c) { roberta_fields(f, c, "XLMRoberta"); });
}

}  // namespace octet
