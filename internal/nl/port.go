// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PortFlags are flags of a bridge's port.
type PortFlags struct{ Hairpin, Isolated bool }

// PortFlags reads the flags of one port (IFLA_INFO_SLAVE_DATA), for which the
// library would list all ports. A link that is no port has none.
func (c *Conn) PortFlags(index int) (PortFlags, error) {
	var flags PortFlags
	if err := c.dialStrict(); err != nil {
		return flags, err
	}
	req := vnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_ROUTE: c.strict}
	head := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	req.AddData(head)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return flags, fmt.Errorf("read port %d: %w", index, err)
	}
	for _, m := range msgs {
		data := find(m[head.Len():], unix.IFLA_LINKINFO, vnl.IFLA_INFO_SLAVE_DATA)
		flags.Hairpin = isOn(find(data, vnl.IFLA_BRPORT_MODE))
		flags.Isolated = isOn(find(data, vnl.IFLA_BRPORT_ISOLATED))
	}
	return flags, nil
}

// find descends into nested attributes.
func find(data []byte, path ...int) []byte {
	for _, want := range path {
		attrs, err := vnl.ParseRouteAttr(data)
		if err != nil {
			return nil
		}
		data = nil
		for _, a := range attrs {
			if int(a.Attr.Type&^unix.NLA_F_NESTED) == want {
				data = a.Value
			}
		}
	}
	return data
}

func isOn(v []byte) bool { return len(v) == 1 && v[0] != 0 }
