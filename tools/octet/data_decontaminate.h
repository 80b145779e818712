#pragma once

namespace CLI {
class App;
}

namespace octet {

void add_data_decontaminate_command(CLI::App& data);
void add_data_mix_command(CLI::App& data);

}  // namespace octet
