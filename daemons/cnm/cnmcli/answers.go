// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
)

func showInfo(list []network) any {
	n := len(containers(list))
	return map[string]any{"Containers": n, "ContainersRunning": n, "OSType": "linux", "Swarm": map[string]string{"LocalNodeState": "inactive"}}
}

func showNetworks(list []network) any {
	out := []any{}
	for _, n := range list {
		out = append(out, n.docker())
	}
	return out
}

// showNetwork returns the network that Docker would choose for an id: the network with this id,
// or else the one with this name, or else the one whose id begins with it.
func showNetwork(list []network, id string) any {
	for _, is := range []func(network) bool{
		func(n network) bool { return n.Request.NetworkID == id },
		func(n network) bool { return n.name == id },
		func(n network) bool { return id != "" && strings.HasPrefix(n.Request.NetworkID, id) },
	} {
		if i := slices.IndexFunc(list, is); i >= 0 {
			return list[i].docker()
		}
	}
	return missing("network " + id + " not found")
}

func showContainers(list []network) any {
	out := []any{}
	for id, settings := range containers(list) {
		out = append(out, map[string]any{"Id": id, "Names": []string{"/" + id}, "State": "running", "Labels": map[string]string{}, "NetworkSettings": settings})
	}
	return out
}

func showContainer(list []network, id string) any {
	settings, ok := containers(list)[id]
	if !ok {
		return missing("No such container: " + id)
	}
	return map[string]any{"Id": id, "Name": "/" + id, "State": map[string]any{"Running": true, "Status": "running"},
		"Config": map[string]any{"Labels": map[string]string{}, "Hostname": ""}, "NetworkSettings": settings}
}

// containers returns the containers of all networks by id, with their settings in each network.
func containers(list []network) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, n := range list {
		for _, m := range n.members {
			if out[m.ContainerID] == nil {
				out[m.ContainerID] = map[string]any{"SandboxKey": m.NetNS, "Networks": map[string]any{}}
			}
			out[m.ContainerID]["Networks"].(map[string]any)[n.name] = n.settings(m)
		}
	}
	return out
}

// settings returns the settings of an endpoint. An unknown address is encoded as the empty
// string.
func (n network) settings(m *remote.DriverState) map[string]any {
	i := has(m)
	s := map[string]any{
		"NetworkID": n.Request.NetworkID, "EndpointID": m.EndpointID, "MacAddress": i.MacAddress,
		"IPAddress": i.Address.Addr(), "GlobalIPv6Address": i.AddressIPv6.Addr(),
	}
	if i.Address.IsValid() {
		s["IPPrefixLen"] = i.Address.Bits()
	}
	if i.AddressIPv6.IsValid() {
		s["GlobalIPv6PrefixLen"] = i.AddressIPv6.Bits()
	}
	return s
}

func has(a *remote.DriverState) cnm.Interface {
	if a.Interface == nil {
		return cnm.Interface{}
	}
	return *a.Interface
}

// flag reads a boolean option of CreateNetwork.
func (n network) flag(key string) bool {
	v, err := n.Request.Options.Flag(key, false)
	return err == nil && v
}

// docker returns the network in Docker's format.
func (n network) docker() map[string]any {
	options, err := n.Request.Options.Strings()
	if err != nil || options == nil {
		options = map[string]string{}
	}
	var pools []map[string]any
	for _, d := range slices.Concat(n.Request.IPv4Data, n.Request.IPv6Data) {
		pool := map[string]any{"Subnet": d.Pool.String()}
		if d.Gateway.IsValid() {
			pool["Gateway"] = d.Gateway.Addr()
		}
		pools = append(pools, pool)
	}
	labels := n.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	containers := map[string]any{}
	for _, m := range n.members {
		i := has(m)
		containers[m.ContainerID] = map[string]any{
			"Name": m.ContainerID, "EndpointID": m.EndpointID, "MacAddress": i.MacAddress, "IPv4Address": i.Address, "IPv6Address": i.AddressIPv6,
		}
	}
	return map[string]any{
		"Name": n.name, "Id": n.Request.NetworkID, "Scope": cnm.ScopeLocal, "Driver": n.Driver.String(),
		"EnableIPv4": n.flag(cnm.OptionEnableIPv4), "EnableIPv6": n.flag(cnm.OptionEnableIPv6), "Internal": n.flag(cnm.OptionInternal),
		"Attachable": false, "Ingress": false, "ConfigOnly": false,
		"IPAM":    map[string]any{"Driver": "default", "Options": map[string]string{}, "Config": pools},
		"Options": options, "Labels": labels, "Containers": containers,
	}
}

// joined returns every pair of a network and one of its containers.
func joined(list []network) map[[2]string]string {
	out := map[[2]string]string{}
	for _, n := range list {
		for _, m := range n.members {
			out[[2]string{n.Request.NetworkID, m.ContainerID}] = n.name
		}
	}
	return out
}

// events returns an event for each of pairs that is not in except.
func events(action string, pairs, except map[[2]string]string) (list []map[string]any) {
	t := time.Now()
	for at, name := range pairs {
		if _, ok := except[at]; !ok {
			list = append(list, map[string]any{
				"Type": "network", "Action": action, "scope": "local", "time": t.Unix(), "timeNano": t.UnixNano(),
				"Actor": map[string]any{"ID": at[0], "Attributes": map[string]string{"container": at[1], "name": name}},
			})
		}
	}
	return list
}
