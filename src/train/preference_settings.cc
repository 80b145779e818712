#include "train/preference_settings.h"

#include "base/error.h"

namespace octet {

void add_settings(SettingsTable& t, PreferenceSettings& p) {
  t.add("dpo.loss", &p.loss,
        {.meaning = "sigmoid: DPO; ipo: the squared distance of the answers' mean log-ratios from 1 / (2 beta)",
         .choices = {"sigmoid", "ipo"}});
  t.add("dpo.beta", &p.beta,
        {.meaning = "how closely the model is held to the reference: the larger, the closer", .min = 1e-6, .max = 1e6});
  t.add("dpo.label_smoothing", &p.label_smoothing,
        {.meaning = "sigmoid: the share of pairs taken to be labelled the wrong way round", .min = 0, .max = 0.4999});
  t.add("dpo.reference", &p.reference,
        {.meaning = "the frozen model that answers are compared with: a folder; empty = the one in model.from, without "
                    "the adapter"});
}

void validate(const PreferenceSettings& p) {
  check(p.label_smoothing == 0 || p.loss == "sigmoid", ErrorCode::kInvalidArgument,
        "dpo.label_smoothing={} is of dpo.loss=sigmoid, and dpo.loss={}: leave one out", p.label_smoothing, p.loss);
}

}  // namespace octet
