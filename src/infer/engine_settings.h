// The settings table of EngineOptions: ranges, flags of commands, docs/config.md and /server_info follow from it. An
// option is a member of the struct and a row of this table.
#pragma once

#include "base/settings.h"
#include "octet/engine.h"

namespace octet {

// `task`: only what an engine of that task reads, generate or embed; empty: all.
SettingsTable settings_of(EngineOptions& options, const std::string& task = {});

}  // namespace octet
