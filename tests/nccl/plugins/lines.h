// For the plugins of the tests: writes lines into the file that TUTTI_TEST_PLUGIN_FILE names. Each line is written by
// one write(), so lines of several processes do not mix.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tutti::nccl_test {

__attribute__((format(printf, 1, 2))) inline void write_line(const char* format, ...) {
  char line[1024];
  std::va_list arguments;
  va_start(arguments, format);
  int length = std::vsnprintf(line, sizeof(line) - 1, format, arguments);
  va_end(arguments);
  const char* const name = std::getenv("TUTTI_TEST_PLUGIN_FILE");
  if (name == nullptr || length < 0) return;
  if (length > static_cast<int>(sizeof(line)) - 2) length = static_cast<int>(sizeof(line)) - 2;
  line[length] = '\n';
  const int file = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (write(file, line, static_cast<std::size_t>(length) + 1) < 0) std::abort();
  close(file);
}

}  // namespace tutti::nccl_test
