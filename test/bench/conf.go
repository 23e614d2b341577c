// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// These are the configurations. Every set of plugins gets the same bytes. The plugins choose the
// backends of firewall and masquerade themselves, as in production.

const (
	bridgePlain   = `{"type":"bridge","bridge":"bench0","isGateway":true,"hairpinMode":true,"ipam":` + ipam4 + `}`
	bridgeMasq    = `{"type":"bridge","bridge":"bench0","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":` + ipam4 + `}`
	bridgeMasqNft = `{"type":"bridge","bridge":"bench0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables","hairpinMode":true,"ipam":` + ipam4 + `}`
	ptpMasq       = `{"type":"ptp","ipMasq":true,"ipam":` + ipam4 + `}`
	ptp4          = `{"type":"ptp","ipam":` + ipam4 + `}`
	ptp6          = `{"type":"ptp","ipam":` + ipam6 + `}`
	macvlan4      = `{"type":"macvlan","master":"` + segmentLink + `","mode":"bridge","ipam":` + ipam4 + `}`
	macvlan6      = `{"type":"macvlan","master":"` + segmentLink + `","mode":"bridge","ipam":` + ipam6 + `}`
	ipvlan4       = `{"type":"ipvlan","master":"` + segmentLink + `","mode":"l2","ipam":` + ipam4 + `}`
	macvlanDHCP   = `{"type":"macvlan","master":"` + segmentLink + `","mode":"bridge","ipam":{"type":"dhcp"}}`
	portmap       = `{"type":"portmap","capabilities":{"portMappings":true}}`
	portmapNft    = `{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}`
	firewall      = `{"type":"firewall"}`
	hostLocal     = `{"type":"host-local","ipam":{"type":"host-local","ranges":[[{"subnet":"10.128.0.0/14"}]]}}`

	ipam4 = `{"type":"host-local","ranges":[[{"subnet":"10.201.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}`
	ipam6 = `{"type":"host-local","ranges":[[{"subnet":"fd00:201::/64"}]],"routes":[{"dst":"::/0"}]}`
)

// conflist returns the configuration of a chain. The network has the chain's name. version is the
// CNI version of the configuration.
func conflist(name, version string) (*libcni.NetworkConfigList, error) {
	var plugins []string
	switch name {
	case "full":
		plugins = []string{bridgeMasq, portmap, firewall}
	case "full-nft":
		plugins = []string{bridgeMasqNft, portmapNft, firewall}
	case "full-one":
		plugins = []string{one(bridgeMasq, portmap, firewall)}
	case "grow":
		plugins = []string{ptpMasq, portmap, firewall}
	case "grow-one":
		plugins = []string{one(ptpMasq, portmap, firewall)}
	case "bridge":
		plugins = []string{bridgePlain}
	case "ptp4":
		plugins = []string{ptp4}
	case "ptp6":
		plugins = []string{ptp6}
	case "macvlan4":
		plugins = []string{macvlan4}
	case "macvlan6":
		plugins = []string{macvlan6}
	case "ipvlan4":
		plugins = []string{ipvlan4}
	case "dhcp":
		plugins = []string{macvlanDHCP}
	case "hl0", "flat0", "hl60k":
		plugins = []string{hostLocal}
	default:
		return nil, fmt.Errorf("no chain %q", name)
	}
	text := fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[%s]}`, version, name, strings.Join(plugins, ","))
	return libcni.ConfListFromBytes([]byte(text))
}

// one returns the chain packed into one plugin (`type: patchbay`), as `patchbay convert` writes it.
func one(plugins ...string) string {
	return `{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[` + strings.Join(plugins, ",") + `]}`
}
