// What the shared library shows: it is built with hidden visibility, and only what carries TUTTI_API is exported.
#pragma once

#define TUTTI_API __attribute__((visibility("default")))
