// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package looptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// drives returns a network whose plugin calls the driver that runs another network, or this one.
func drives(name, network, cniVersion string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[{"type":"cnm","driver":"patchbay","options":{"cni.network":%q}}]}`, cniVersion, name, network)
}

// ownPools is a network whose IPAM driver runs this same network for its addresses.
const ownPools = `{"cniVersion":"1.0.0","name":"ownpools","plugins":[{"type":"bridge","bridge":"loop1","ipam":{
	"type":"cnm-ipam","driver":"patchbay","options":{"cni.network":"ownpools"},"pools":[{}]}}]}`

// TestItself checks that a network that leads to itself is refused with a reason and leaves
// nothing. A network that leads to another one works.
func TestItself(t *testing.T) {
	h := newHost(t)
	for name, text := range map[string]string{
		"itself": drives("itself", "itself", "1.1.0"), "earlier": drives("earlier", "earlier", "1.0.0"), "ownpools": ownPools,
		"there": drives("there", "back", "1.1.0"), "back": drives("back", "there", "1.1.0"), "another": drives("another", "podnet", "1.1.0"),
	} {
		must(t, os.WriteFile(filepath.Join(h.confs, name+".conflist"), []byte(text), 0o600))
	}
	h.kill()
	h.start(h.dirs...)
	c, err := cnm.NewClient(cnm.DriverAddr{URL: "unix://" + filepath.Join(cnm.SocketDir, "patchbay.sock")}, cnm.ClientOptions{Timeout: time.Minute})
	must(t, err)
	for _, name := range []string{"itself", "earlier", "ownpools", "there"} {
		if err := h.attach(c, name); err == nil || !strings.Contains(err.Error(), "3 network drivers call each other") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, h.attach(c, "another"))
	for _, kind := range []string{"docker/endpoints/*", "docker/leases/*", "cnm/attachments/*/*"} {
		if left, _ := filepath.Glob("/var/lib/patchbay/" + kind); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// attach makes the calls of the beginning and the end of a `docker run` on a network.
func (h *host) attach(c *cnm.Client, name string) error {
	h.Helper()
	h.port++
	id := fmt.Sprintf("%064x", h.port)
	in := &cnm.CreateNetworkRequest{NetworkID: id, Options: cnm.Options{}}
	must(h, in.Options.Set(cnm.OptionGeneric, map[string]string{"cni.network": name}))
	must(h, c.CreateNetwork(h.Context(), in))
	_, err := c.CreateEndpoint(h.Context(), &cnm.CreateEndpointRequest{NetworkID: id, EndpointID: id})
	must(h, c.DeleteEndpoint(h.Context(), &cnm.EndpointRequest{NetworkID: id, EndpointID: id}))
	must(h, c.DeleteNetwork(h.Context(), &cnm.NetworkRequest{NetworkID: id}))
	return err
}
