// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-net/patchbay/spec"
)

// These are the options of a network (podman network create -o). They have the names that the options of Docker's driver
// have.
const (
	optNetwork = "cni.network" // the CNI network; by default it has the name of podman's
	optPortmap = "cni.portmap" // auto or off
)

// options holds the decoded options of a network.
type options struct {
	network string
	portmap bool // publish the containers' ports; podman gives them to each network of a container
}

// given returns the options of a network as the user gave them. A program that uses Docker's API
// can set only labels, so a label with the name of an option counts as that option.
func (n *network) given() map[string]string {
	out := map[string]string{}
	for _, key := range []string{optNetwork, optPortmap} {
		if value, ok := n.Labels[key]; ok {
			out[key] = value
		}
	}
	maps.Copy(out, n.Options)
	return out
}

// options decodes the options. It refuses an option that it does not know: with a typing error, the user would get another
// network than intended.
func (n *network) options() (*options, error) {
	o := &options{network: n.Name, portmap: true}
	given := n.given()
	for _, key := range slices.Sorted(maps.Keys(given)) {
		switch value := given[key]; {
		case key == optNetwork:
			o.network = value
		case key == optPortmap && (value == "auto" || value == "off"):
			o.portmap = value == "auto"
		case key == optPortmap:
			return nil, fmt.Errorf("option %s=%q: want auto or off", key, value)
		default:
			return nil, fmt.Errorf("option %q is not one of this driver, which has %s and %s: the file of the CNI network decides about everything else", key, optNetwork, optPortmap)
		}
	}
	if err := spec.ValidateNetworkName(o.network); err != nil {
		return nil, fmt.Errorf("option %s: %w", optNetwork, err)
	}
	return o, nil
}
