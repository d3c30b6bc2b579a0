// Turns Error values into Python exceptions. tutti/errors.py defines the exception classes.
#include <nanobind/stl/string.h>

#include <string>

#include "core.h"

namespace tutti::python {
namespace {

// The function of tutti/errors.py that creates an exception from (code, scope, rank, message); null until that module
// has set it. Never destroyed, because the interpreter has ended before static objects are destroyed.
nb::object* error_class = nullptr;

void set_error_class(nb::object factory) {
  delete error_class;
  error_class = new nb::object(std::move(factory));
}

std::string text_of(int code, const std::string& message) {
  return to_string(Error{.code = static_cast<ErrorCode>(code), .message = message});
}

}  // namespace

void raise(const Error& error) {
  if (error_class == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, to_string(error).c_str());
  } else {
    const nb::object exception = (*error_class)(static_cast<int>(error.code), static_cast<int>(error.scope), error.rank,
                                                nb::str(error.message.data(), error.message.size()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  }
  throw nb::python_error();
}

void raise_invalid(std::string message) {
  raise(Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message)});
}

void add_errors(nb::module_& module) {
  nb::dict codes, scopes;
  for (int code = 0; code <= static_cast<int>(kLastErrorCode); ++code) {
    const std::string_view name = to_string(static_cast<ErrorCode>(code));
    codes[nb::str(name.data(), name.size())] = code;
  }
  for (int scope = 0; scope <= static_cast<int>(ErrorScope::kProcess); ++scope) {
    const std::string_view name = to_string(static_cast<ErrorScope>(scope));
    scopes[nb::str(name.data(), name.size())] = scope;
  }
  module.attr("error_codes") = codes;
  module.attr("error_scopes") = scopes;
  module.def("set_error_class", &set_error_class, nb::arg("factory"));
  module.def("error_text", &text_of, nb::arg("code"), nb::arg("message"));
}

}  // namespace tutti::python
