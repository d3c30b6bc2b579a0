#include "tools/sim/machine_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/topo/graph.h"
#include "topology/xml/xml.h"

namespace tutti::tool {

Result<MachineFile> read_machine_file(const std::string& path) {
  // Read one byte more than the limit, so that read_xml() detects a file that is too long.
  const Result<std::string> text = read_file(path, kMaxXmlBytes + 1);
  TUTTI_TRY(text);
  XmlReading reading = read_xml(*text);
  const auto is = [](Severity severity) { return [=](const Finding& one) { return one.severity == severity; }; };
  const auto count = [&](Severity severity) {
    return static_cast<std::size_t>(std::count_if(reading.findings.begin(), reading.findings.end(), is(severity)));
  };
  if (!reading.usable()) {
    const auto first = std::find_if(reading.findings.begin(), reading.findings.end(), is(Severity::kError));
    std::string fault = first == reading.findings.end() ? path : findings_text(path, {&*first, 1});
    while (fault.ends_with('\n')) fault.pop_back();
    return wrong_content(
        fmt::format("{} ({} errors in all: tutti topo --xml {})", fault, count(Severity::kError), path));
  }
  MachineFile file{.machine = std::move(reading.graph), .warnings = count(Severity::kWarning)};
  if (file.machine.name.empty()) file.machine.name = path.substr(path.rfind('/') + 1);
  return file;
}

}  // namespace tutti::tool
