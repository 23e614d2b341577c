// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func message(kind, flags uint16, data ...byte) syscall.NetlinkMessage {
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind, Flags: flags, Seq: 7}, Data: data}
}

// The reader distinguishes the end of an answer, an error, and an answer to another request.
func TestAnswers(t *testing.T) {
	other := message(unix.RTM_NEWLINK, 0, 'o')
	other.Header.Seq = 6
	for name, c := range map[string]struct {
		msgs     []syscall.NetlinkMessage
		list     string
		err      error
		complete bool
	}{
		"one message":        {msgs: []syscall.NetlinkMessage{other, message(unix.RTM_NEWLINK, 0, 'a'), message(unix.NLMSG_ERROR, 0, 0, 0, 0, 0)}, list: "[a]", complete: true},
		"acknowledgement":    {msgs: []syscall.NetlinkMessage{message(unix.NLMSG_ERROR, 0, 0, 0, 0, 0)}, list: "[]", complete: true},
		"error":              {msgs: []syscall.NetlinkMessage{message(unix.NLMSG_ERROR, 0, 0xed, 0xff, 0xff, 0xff)}, list: "[]", err: unix.ENODEV, complete: true},
		"dump":               {msgs: []syscall.NetlinkMessage{message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 'a'), message(unix.RTM_NEWADDR, unix.NLM_F_MULTI, 'x'), message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 'b'), message(unix.NLMSG_DONE, unix.NLM_F_MULTI)}, list: "[a b]", complete: true},
		"dump that goes on":  {msgs: []syscall.NetlinkMessage{message(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 'a')}, list: "[a]"},
		"dump with an error": {msgs: []syscall.NetlinkMessage{message(unix.NLMSG_DONE, unix.NLM_F_MULTI, 0xed, 0xff, 0xff, 0xff)}, list: "[]", err: unix.ENODEV, complete: true},
	} {
		got := answers{seq: 7, kind: unix.RTM_NEWLINK}
		var err error
		for _, m := range c.msgs {
			err = errors.Join(err, got.add(m))
		}
		if list := fmt.Sprintf("%s", got.list); list != c.list || !errors.Is(err, c.err) || got.complete != c.complete {
			t.Errorf("%s: %s, %v, complete %v", name, list, err, got.complete)
		}
	}
	got := answers{seq: 7}
	if got.add(message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR)) != nil || !got.interrupted {
		t.Error("an interruption is lost")
	}
}

// Many goroutines send requests, and each gets its own answer. Errors, and acknowledgements that
// earlier requests left unread, may come before the answer.
func TestRequestsAtOnce(t *testing.T) {
	host, inside := open(t, "atonce")
	near, _ := pair(t, host, inside, Veth{})
	missing := attr(unix.IFLA_IFNAME, vnl.ZeroTerminated("missing"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				for _, want := range []int{1, near.Attrs().Index} {
					got, err := host.request(unix.RTM_GETLINK, unix.NLM_F_ACK, 0, linkHead(want))
					if err != nil || len(got) != 1 || int(vnl.DeserializeIfInfomsg(got[0]).Index) != want {
						t.Errorf("link %d: %d answers, %v", want, len(got), err)
					}
				}
				if _, err := host.request(unix.RTM_GETLINK, unix.NLM_F_ACK, 0, linkHead(0), missing); !IsNotFound(err) {
					t.Errorf("a missing link: %v", err)
				}
				if _, err := host.Addrs(1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
