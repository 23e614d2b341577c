// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"flag"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/pages"
	"github.com/patchbay-net/patchbay/plugin/all"
)

var update = flag.Bool("update", false, "write the generated files")

// TestFieldDocs compares fields.txt with the comments in the plugins' source.
func TestFieldDocs(t *testing.T) {
	pages.Golden(t, "fields.txt", pages.Comments(t, all.Plugins()), *update)
}

// TestFieldTables compares the table on the page of each plugin with the code.
func TestFieldTables(t *testing.T) {
	pages.Tables(t, all.Plugins(), "./cli", *update)
}
