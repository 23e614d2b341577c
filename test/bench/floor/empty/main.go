// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command empty is the cheapest Go program there is: what one exec costs
// before a plugin has done anything.
package main

func main() {}
