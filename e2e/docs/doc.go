// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs runs every command of the pages for users, in the order of the
// page, on a host that has nothing installed: a dockerd of test/labs/docker whose
// directories of programs, plugins and units are the test's. README.md is run on
// a machine without any runtime but podman. A page says what is a
// command and what it prints by the rules of package page.
package docs
