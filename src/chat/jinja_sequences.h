// Filters over lists and dicts; their table is jinja_filters.cc's.
#pragma once

#include "chat/jinja_runtime.h"

namespace octet::jinja {

Value attribute(Runtime& runtime, const Call& call);
Value batch(Runtime& runtime, const Call& call);
Value dictsort(Runtime& runtime, const Call& call);
Value first(Runtime& runtime, const Call& call);
Value greatest(Runtime& runtime, const Call& call);
Value groupby(Runtime& runtime, const Call& call);
Value items(Runtime& runtime, const Call& call);
Value join(Runtime& runtime, const Call& call);
Value last(Runtime& runtime, const Call& call);
Value least(Runtime& runtime, const Call& call);
Value length(Runtime& runtime, const Call& call);
Value list(Runtime& runtime, const Call& call);
Value map(Runtime& runtime, const Call& call);
Value reject(Runtime& runtime, const Call& call);
Value rejectattr(Runtime& runtime, const Call& call);
Value reverse(Runtime& runtime, const Call& call);
Value select(Runtime& runtime, const Call& call);
Value selectattr(Runtime& runtime, const Call& call);
Value slice(Runtime& runtime, const Call& call);
Value sort(Runtime& runtime, const Call& call);
Value sum(Runtime& runtime, const Call& call);
Value unique(Runtime& runtime, const Call& call);

}  // namespace octet::jinja
