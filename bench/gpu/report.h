// The results of gpu_bench: sections of rows, which are printed as Markdown for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tutti::bench {

using Row = nlohmann::ordered_json;  // a JSON object; a field that is not in Section::columns appears only in the JSON

struct Section {
  std::string name;  // name in the JSON
  std::string title;
  std::vector<std::string> notes;    // printed above the table; if there are no rows, they give the reason
  std::vector<std::string> columns;  // the fields that the table shows, in order
  std::vector<Row> rows;
};

struct Report {
  Row head;  // fields about the whole run
  std::vector<Section> sections;
  std::uint64_t wrong = 0;  // number of wrong results in all sections
};

std::string to_markdown(const Report& report);
std::string to_json(const Report& report);

}  // namespace tutti::bench
