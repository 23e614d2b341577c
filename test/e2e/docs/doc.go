// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs runs every command of the pages for users, in the order of the page, on a
// host with nothing installed: a dockerd of test/labs/docker whose directories of programs,
// plugins and units are the test's. It runs README.md on a machine without any runtime but
// podman. Package page defines how a page marks commands and their output.
package docs
