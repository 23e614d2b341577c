// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// entry is where the process begins if the program was linked with -ldflags
// -E=github.com/patchbay-net/patchbay/internal/handover.entry. Without this flag, the linker leaves
// it out. If the process is a plugin, entry hands the call over to a server (doc.go). Otherwise, and if
// there is no server, it jumps to Go's own entry with the stack that the kernel made. Before that, it makes
// Go's start shorter by 0.2 ms (start; Restore).
//
// It calls no function, pushes nothing on the stack, and touches no memory that Go manages. Go's entry
// needs no registers. R14 and R15 are the strings of name and environment, R12 is the connection, and BX
// counts bytes of standard input.

#define SYS_read       0
#define SYS_write      1
#define SYS_close      3
#define SYS_socket     41
#define SYS_connect    42
#define SYS_sendto     44
#define SYS_recvfrom   45
#define SYS_sendmsg    46
#define SYS_shutdown   48
#define SYS_getsockopt 55
#define SYS_exit_group 231
#define SYS_ppoll      271
#define SYS_prlimit64  302

#define AF_UNIX       1
#define SOCK_TYPE     0x80805 // SOCK_SEQPACKET|SOCK_CLOEXEC|SOCK_NONBLOCK
#define MSG_NOSIGNAL  0x4000
#define SOL_SOCKET    1
#define SO_PEERCRED   17
#define SHUT_RD       0
#define POLLIN        1
#define POLLOUT       4
#define RLIMIT_NOFILE 7
#define EINTR         4
#define EAGAIN        11

#define MAX_INPUT  0x10000  // maxInput
#define MAX_ANSWER 0x110008 // answerSize, maxStderr and maxOutput

#define CALL(nr) MOVL $nr, AX; SYSCALL

// struct sockaddr_un with Path.
DATA address<>+0(SB)/2, $AF_UNIX
DATA address<>+2(SB)/8, $"/run/pat"
DATA address<>+10(SB)/8, $"chbay/pl"
DATA address<>+18(SB)/8, $"ugins.so"
DATA address<>+26(SB)/4, $"ck\x00\x00"
GLOBL address<>(SB), RODATA|NOPTR, $30
#define ADDRESS_SIZE 29

// struct timespec of a second. The kernel writes the rest of the time to it if a signal stops the process.
DATA second<>+0(SB)/8, $1
DATA second<>+8(SB)/8, $0
GLOBL second<>(SB), NOPTR, $16

// A variable for Go's runtime.
DATA oneP<>+0(SB)/8, $"GOMAXPRO"
DATA oneP<>+8(SB)/8, $"CS=1\x00\x00\x00\x00"
GLOBL oneP<>(SB), RODATA|NOPTR, $16

GLOBL few<>(SB), NOPTR, $16 // struct rlimit

DATA written<>+0(SB)/1, $'A'
GLOBL written<>(SB), RODATA|NOPTR, $1

GLOBL header<>(SB), NOPTR, $16
GLOBL cred<>(SB), NOPTR, $12      // struct ucred: pid, uid, gid
GLOBL credSize<>(SB), NOPTR, $4
GLOBL vector<>(SB), NOPTR, $48    // three struct iovec
GLOBL message<>(SB), NOPTR, $56   // struct msghdr
GLOBL poll<>(SB), NOPTR, $8       // struct pollfd
GLOBL answer<>(SB), NOPTR, $MAX_ANSWER

TEXT ·entry(SB),NOSPLIT|NOFRAME,$0
	// The stack has argc, argv, zero, the environment, zero. A runtime passes no arguments.
	CMPQ 0(SP), $1
	JNE  plain
	MOVQ 8(SP), R14 // the name
	MOVQ R14, R15   // the last string
	LEAQ 24(SP), BX
	XORL R13, R13   // 1: it is a call of a plugin
	XORL R8, R8     // 1: GOMAXPROCS is set
	XORL R9, R9     // 1: the caller wants no server

variable:
	MOVQ 0(BX), SI
	ADDQ $8, BX
	TESTQ SI, SI
	JEQ  variables
	MOVQ SI, R15
	MOVQ $0x4d4d4f435f494e43, AX // "CNI_COMM"
	CMPQ 0(SI), AX
	JEQ  command
	MOVQ $0x4f525058414d4f47, AX // "GOMAXPRO"
	CMPQ 0(SI), AX
	JEQ  procs
	MOVQ $0x5941424843544150, AX // "PATCHBAY"
	CMPQ 0(SI), AX
	JNE  variable
	MOVQ $0x4e4544495345525f, AX // "_RESIDEN"
	CMPQ 8(SI), AX
	JNE  variable
	MOVQ $0x00000066666f3d54, AX // "T=off", zero
	MOVQ 16(SI), CX              // the path of the program is behind the last string, so this is memory
	SHLQ $16, CX
	SHLQ $16, AX
	CMPQ CX, AX
	JNE  variable
	MOVL $1, R9
	JMP  variable

command:
	MOVL $1, R13
	JMP  variable

procs:
	MOVL $1, R8
	JMP  variable

variables:
	TESTL R13, R13
	JEQ   plain
	TESTL R8, R8
	JNE   ask // the caller has chosen a number
	MOVB  $1, ·lean(SB)

ask:
	TESTL R9, R9
	JNE   start

	// The kernel puts the name and the environment into memory one after the other.
length:
	MOVBLZX 0(R15), AX
	INCQ    R15
	TESTL   AX, AX
	JNE     length
	SUBQ    R14, R15 // the bytes of all strings

	MOVL  $AF_UNIX, DI
	MOVL  $SOCK_TYPE, SI
	XORL  DX, DX
	CALL(SYS_socket)
	TESTQ AX, AX
	JLT   start
	MOVQ  AX, R12
	CMPQ  R12, $2
	JLE   close // one of 0 to 2 was closed: the output must not go to the server

	MOVQ  R12, DI
	LEAQ  address<>(SB), SI
	MOVL  $ADDRESS_SIZE, DX
	CALL(SYS_connect)
	TESTQ AX, AX
	JNE   close // no server, or too many callers

	// Only root may be the server, whatever the rights of the directory are.
	MOVL $12, credSize<>(SB)
	MOVQ R12, DI
	MOVL $SOL_SOCKET, SI
	MOVL $SO_PEERCRED, DX
	LEAQ cred<>(SB), R10
	LEAQ credSize<>(SB), R8
	CALL(SYS_getsockopt)
	TESTQ AX, AX
	JNE  close
	CMPL cred<>+4(SB), $0
	JNE  close

	XORL BX, BX

read:
	XORL  DI, DI
	LEAQ  ·input(SB), SI
	ADDQ  BX, SI
	MOVL  $MAX_INPUT, DX
	SUBQ  BX, DX
	JEQ   close // a longer input
	CALL(SYS_read)
	TESTQ AX, AX
	JLT   close // Go reports the error
	JEQ   send
	ADDQ  AX, BX
	MOVQ  BX, ·inputLen(SB)
	JMP   read

send:
	LEAQ header<>(SB), AX
	MOVQ R15, 0(AX)
	MOVQ BX, 8(AX)
	LEAQ vector<>(SB), SI
	MOVQ AX, 0(SI)
	MOVQ $16, 8(SI)
	MOVQ R14, 16(SI)
	MOVQ R15, 24(SI)
	LEAQ ·input(SB), AX
	MOVQ AX, 32(SI)
	MOVQ BX, 40(SI)
	LEAQ message<>(SB), CX
	MOVQ SI, 16(CX) // msg_iov
	MOVQ $3, 24(CX)
	MOVQ R12, DI
	MOVQ CX, SI
	MOVL $MSG_NOSIGNAL, DX
	CALL(SYS_sendmsg)
	TESTQ AX, AX
	JLT  close

	// Does the server take the call?
	XORL R13, R13 // 1: the connection was shut down
	MOVL R12, poll<>+0(SB)
	MOVL $POLLIN, poll<>+4(SB)

wait:
	LEAQ poll<>(SB), DI
	MOVL $1, SI
	LEAQ second<>(SB), DX
	XORL R10, R10
	CALL(SYS_ppoll)
	CMPQ AX, $-EINTR
	JEQ  wait
	CMPQ AX, $1
	JEQ  taken
	MOVL $1, R13
	MOVQ R12, DI
	MOVL $SHUT_RD, SI
	CALL(SYS_shutdown)

taken:
	MOVQ R12, DI
	LEAQ answer<>(SB), SI
	MOVL $MAX_ANSWER, DX
	XORL R10, R10
	XORL R8, R8
	XORL R9, R9
	CALL(SYS_recvfrom)
	CMPQ AX, $1
	JNE  close // it refuses, or it hangs
	CMPB answer<>(SB), $'T'
	JNE  close

	// The result, after any time. If the "T" came just before the shutdown, there is none: without any
	// event to ask for, this waits until the server has ended the call and closed the connection.
	TESTL R13, R13
	JEQ   result
	MOVL  $0, poll<>+4(SB)

result:
	LEAQ poll<>(SB), DI
	MOVL $1, SI
	XORL DX, DX
	XORL R10, R10
	CALL(SYS_ppoll)
	CMPQ AX, $-EINTR
	JEQ  result
	MOVQ R12, DI
	LEAQ answer<>(SB), SI
	MOVL $MAX_ANSWER, DX
	XORL R10, R10
	XORL R8, R8
	XORL R9, R9
	CALL(SYS_recvfrom)
	CMPQ AX, $8
	JLT  lost
	MOVQ AX, R15
	SUBQ $8, R15
	LEAQ answer<>+8(SB), R14
	MOVL answer<>+4(SB), BX
	SUBQ BX, R15 // the bytes of the output; those of standard error come first
	MOVL $2, R13

write: // BX bytes at R14 to descriptor R13
	TESTQ BX, BX
	JEQ   next
	MOVQ  R13, DI
	MOVQ  R14, SI
	MOVQ  BX, DX
	CALL(SYS_write)
	CMPQ  AX, $-EAGAIN
	JEQ   full
	CMPQ  AX, $-EINTR
	JEQ   write
	TESTQ AX, AX
	JLE   failed
	ADDQ  AX, R14
	SUBQ  AX, BX
	JMP   write

full: // a pipe that does not block
	MOVL R13, poll<>+0(SB)
	MOVL $POLLOUT, poll<>+4(SB)
	LEAQ poll<>(SB), DI
	MOVL $1, SI
	XORL DX, DX
	XORL R10, R10
	CALL(SYS_ppoll)
	JMP  write

failed:
	CMPQ R13, $1
	JEQ  unwritten
	ADDQ BX, R14 // nothing depends on standard error

next:
	MOVQ R15, BX
	DECQ R13
	CMPQ R13, $1
	JEQ  write

	TESTQ R15, R15
	JEQ   exit
	MOVQ  R12, DI
	LEAQ  written<>(SB), SI
	MOVL  $1, DX
	MOVL  $MSG_NOSIGNAL, R10
	XORL  R8, R8
	XORL  R9, R9
	CALL(SYS_sendto) // if this fails, the server died after its answer and does not undo the call

exit:
	MOVL answer<>(SB), DI
	CALL(SYS_exit_group)

unwritten: // the server undoes the call when the connection ends
	MOVL $1, DI
	CALL(SYS_exit_group)

lost:
	MOVB $1, ·lost(SB)

close:
	MOVQ R12, DI
	CALL(SYS_close)

start:
	CMPB ·lean(SB), $0
	JEQ  plain

	// Go's start reads the limits of control groups, even if the program wants none. Without descriptors,
	// it cannot open these files. Descriptors 0 to 2 remain, because Go opens those that are closed.
	XORL  DI, DI
	MOVL  $RLIMIT_NOFILE, SI
	XORL  DX, DX
	LEAQ  ·files(SB), R10
	CALL(SYS_prlimit64)
	TESTQ AX, AX
	JNE   single
	MOVQ  $3, few<>+0(SB)
	MOVQ  ·files+8(SB), AX // the hard limit stays
	MOVQ  AX, few<>+8(SB)
	XORL  DI, DI
	MOVL  $RLIMIT_NOFILE, SI
	LEAQ  few<>(SB), DX
	XORL  R10, R10
	CALL(SYS_prlimit64)
	TESTQ AX, AX
	JNE   single
	MOVB  $1, ·limited(SB)

single:
	// A plugin does one thing after another. Move all words up to the end of the environment down by one,
	// and put GOMAXPROCS=1 into the place that becomes free.
	MOVQ SP, SI
	SUBQ $8, SP
	MOVQ SP, DI
	MOVL $3, CX // argc, the name, zero

move:
	MOVQ 0(SI), AX
	MOVQ AX, 0(DI)
	ADDQ $8, SI
	ADDQ $8, DI
	DECQ CX
	JGT  move
	CMPQ 0(SI), $0
	JNE  move
	LEAQ oneP<>(SB), AX
	MOVQ AX, 0(DI)

plain:
	JMP _rt0_amd64_linux(SB)
