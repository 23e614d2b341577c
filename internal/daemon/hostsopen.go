// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/file"
)

// openStore opens the engine that a URL names.
func openStore(url string) (store.Store, error) {
	dir, ok := strings.CutPrefix(url, "file://")
	if !ok {
		return nil, fmt.Errorf("store %q: want file:///DIR", url)
	}
	return file.Open(dir, file.Options{})
}
