// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

// The file of an endpoint is damaged. Networks can still be removed.
func TestDeleteBesideADamagedEndpoint(t *testing.T) {
	n := newNode(t, bridgeNet)
	id, err := n.createNetwork(map[string]string{"cni.network": "podnet"}, nil)
	must(t, err)
	path := filepath.Join(n.opts.Paths.State, "docker/endpoints", strings.Repeat("ab", 32))
	writeFile(t, path, "{")
	n.stop()
	n.boot()
	must(t, n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: id}))
	if _, err := n.driver.state.Networks.Get(id); !errors.Is(err, state.ErrUnknown) {
		t.Errorf("the network is still there: %v", err)
	}
	must(t, os.Remove(path))
}
