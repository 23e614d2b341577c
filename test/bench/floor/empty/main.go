// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command empty is an empty Go program. It measures what one exec costs before a plugin does
// anything.
package main

func main() {}
