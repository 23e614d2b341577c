// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs runs every command of the pages for users, in the order of the page, on a host
// with nothing installed. The host is a dockerd of test/labs/docker, with the test's own
// directories of programs, plugins and units. README.md and docs/start.md run on a machine without any runtime but
// podman. Package page defines how a page marks commands and their output.
package docs
