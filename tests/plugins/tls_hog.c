/* SPDX-License-Identifier: Apache-2.0 */
/* Takes 64 bytes of the static TLS that is left for libraries opened at run time. */
__thread char hog[64] = {1};
char *tls_hog(void);

char *tls_hog(void)
{
    return hog;
}
